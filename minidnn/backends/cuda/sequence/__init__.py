"""Kernel plans printed as CUDA."""

from .printer import print_sequence
from .suit import Suited, print_region
from .vectors import SequenceKernel

__all__ = ["SequenceKernel", "Suited", "print_region", "print_sequence"]
