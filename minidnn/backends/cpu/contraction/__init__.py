"""Kernels of convolutions and linear layers, with the operations fused into them."""

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
from .integer_fallback import multiplies_int8, print_integer, why_not_epilogue, why_not_in_blocks
from .problem import why_unsupported

__all__ = [
    "Choice",
    "Choose",
    "NominalWork",
    "Question",
    "choose_by_price",
    "choose_for_any_size",
    "multiplies_int8",
    "print_choice",
    "print_contraction",
    "print_integer",
    "question_of",
    "refusals",
    "why_not_epilogue",
    "why_not_in_blocks",
    "why_unsupported",
    "work_of",
]
