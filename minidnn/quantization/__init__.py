"""Quantization after training: which values and weights become bytes, and by which scales."""
