"""Winograd's minimal filtering for 3x3 kernels of stride 1."""
