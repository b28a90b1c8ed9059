"""Ladders whose steps are kernels in CUDA C, with their launches and memory accesses."""
