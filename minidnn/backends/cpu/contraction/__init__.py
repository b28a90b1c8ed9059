"""Kernels of convolutions and linear layers, with what they absorbed."""

from .kernel import ContractionKernel, print_contraction
from .problem import why_unsupported

__all__ = ["ContractionKernel", "print_contraction", "why_unsupported"]
