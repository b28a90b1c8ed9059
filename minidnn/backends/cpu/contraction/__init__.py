"""Kernels of convolutions and linear layers, with what they absorbed."""

from .algorithms import ACCURACIES, Work, print_contraction, work_of
from .problem import why_unsupported
from .stage import ContractionKernel, Stage, Workspace

__all__ = [
    "ACCURACIES",
    "ContractionKernel",
    "Stage",
    "Work",
    "Workspace",
    "print_contraction",
    "why_unsupported",
    "work_of",
]
