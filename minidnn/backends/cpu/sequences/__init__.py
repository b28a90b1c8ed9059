"""Kernels of sequences: depth-first regions of windows and element-wise steps."""
