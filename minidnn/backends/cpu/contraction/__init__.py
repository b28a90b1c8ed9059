"""Kernels of convolutions and linear layers, with what they absorbed."""

from .algorithms import (
    Choice,
    Choose,
    NominalWork,
    Question,
    choose_by_price,
    choose_for_any_size,
    print_choice,
    print_contraction,
    question_of,
    refusals,
    work_of,
)
from .problem import why_unsupported
from .stage import PrintedContraction, Stage, Workspace
from .whole import multiplies_bytes, print_whole, why_not_behind, why_not_in_blocks

__all__ = [
    "Choice",
    "Choose",
    "NominalWork",
    "PrintedContraction",
    "Question",
    "Stage",
    "Workspace",
    "choose_by_price",
    "choose_for_any_size",
    "multiplies_bytes",
    "print_choice",
    "print_contraction",
    "print_whole",
    "question_of",
    "refusals",
    "why_not_behind",
    "why_not_in_blocks",
    "why_unsupported",
    "work_of",
]
