"""Kernel plans printed as CUDA."""

from .printer import print_sequence
from .suit import Suited, print_region
from .variants import print_variants
from .vectors import SequenceKernel, print_vectors

__all__ = [
    "SequenceKernel",
    "Suited",
    "print_region",
    "print_sequence",
    "print_variants",
    "print_vectors",
]
