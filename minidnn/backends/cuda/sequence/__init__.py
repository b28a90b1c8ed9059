"""Kernel plans printed as CUDA."""
