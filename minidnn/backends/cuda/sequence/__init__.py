"""Kernel plans printed as CUDA."""

from .printer import print_sequence
from .vectors import SequenceKernel

__all__ = ["SequenceKernel", "print_sequence"]
