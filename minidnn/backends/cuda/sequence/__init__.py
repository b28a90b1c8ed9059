"""Kernel plans printed as CUDA."""

from .printer import print_sequence
from .suit import Suited, print_region, print_variants
from .vectors import SequenceKernel, are_apart, print_vectors

__all__ = [
    "SequenceKernel",
    "Suited",
    "are_apart",
    "print_region",
    "print_sequence",
    "print_variants",
    "print_vectors",
]
