"""The CUDA backend: generated kernels and cuDNN."""
