"""Kernel plans printed as CUDA."""

from .printer import SequenceKernel, print_sequence

__all__ = ["SequenceKernel", "print_sequence"]
