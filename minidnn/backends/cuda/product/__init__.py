"""Kernels of batched matrix products and of attention, which read and write strided views."""
