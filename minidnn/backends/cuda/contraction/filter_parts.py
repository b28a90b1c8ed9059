"""Gradients of filters whose sums are computed in parts, side by side into the workspace.

A second kernel adds the parts, always in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....runtime.operand import KernelArgument
from ..kernels import Launch
from ..memory import aligned
from ..prelude import TYPES
from .problem import Addresses, ContractionProblem
from .text import source_of

_THREADS = 256
_EACH = 32
"""Numbers of a block, of which each warp adds up some of the parts."""


def filter_part_bytes(problem: ContractionProblem, parts: int) -> int:
    """Of all parts."""
    return aligned(parts * prod(problem.w.shape) * 4)


def print_filter_total(problem: ContractionProblem) -> Launch:
    """Adds up the parts; it takes the arguments of :func:`total_arguments`."""
    source = source_of("stem_total.cu", {"T": TYPES[problem.w.dtype]})
    blocks = -(-prod(problem.w.shape) // _EACH)
    return Launch(source, (blocks, 1, 1), (_THREADS, 1, 1), 4 * _THREADS)


def total_arguments(problem: ContractionProblem, at: Addresses, parts: int) -> list[KernelArgument]:
    """Parts and result, the size of a part, and how many there are."""
    return [at.workspace, at.w, prod(problem.w.shape), parts]


def filter_arguments(
    problem: ContractionProblem, at: Addresses, parts: int, numbers: Sequence[int]
) -> list[list[KernelArgument]]:
    """Of a kernel that takes image, gradient, what it makes and its numbers: the result if there is
    one part; else all parts, which the second kernel then takes."""
    y = at.y + problem.y.offset * problem.y.itemsize
    if parts == 1:
        return [[at.x, y, at.w, *numbers]]
    return [[at.x, y, at.workspace, *numbers], total_arguments(problem, at, parts)]
