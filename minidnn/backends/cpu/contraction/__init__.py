"""Kernels of convolutions and linear layers, with what they absorbed."""

from .algorithms import ACCURACIES, print_contraction
from .problem import why_unsupported
from .stage import ContractionKernel, Stage, Workspace

__all__ = [
    "ACCURACIES",
    "ContractionKernel",
    "Stage",
    "Workspace",
    "print_contraction",
    "why_unsupported",
]
