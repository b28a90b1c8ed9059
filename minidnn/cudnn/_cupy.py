"""Where :mod:`minidnn.gpu.cupy` was; the CUDA backend still imports it from here."""

from minidnn.gpu.cupy import cupy

__all__ = ["cupy"]
