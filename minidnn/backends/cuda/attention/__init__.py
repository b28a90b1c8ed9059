"""Attention in one kernel, and its gradient in two: no scores pass through memory."""
