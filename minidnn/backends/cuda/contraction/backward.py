"""Gradients of convolutions for their image: the filter is turned around, then a kernel of
convolutions takes the result's gradient as its image.

Of a 1x1 convolution that steps over pixels the gradient is that of the pixels it reads, which are
computed by themselves, and zeros between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ....cudnn.graph.spec import TensorSpec
from ....runtime.operand import KernelArgument
from ..copy import print_copy
from ..kernels import Launch
from ..machine import Machine
from ..memory import aligned
from ..prelude import TYPES
from ..tensor import Tensor
from .kernel import ContractionKernel
from .problem import IMAGE_GRADIENT, Addresses, ContractionProblem, packed, weight_strides
from .text import source_of

_THREADS = 256
_MOST_ROWS = 1 << 31


class BackwardKernel(ContractionKernel):
    """The gradient by a kernel of ours for convolutions; a choice is that one's."""

    directions = (IMAGE_GRADIENT,)

    def __init__(self, forward: ContractionKernel) -> None:
        self._forward = forward
        self.name = f"backward {forward.name}"
        self.accuracies = forward.accuracies
        self.adds_up = forward.adds_up
        self.makes_front = forward.makes_front

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if _steps(problem):
            if problem.w.shape[2:] != (1, 1) or any(map(any, problem.padding)):
                return f"its window has a stride of {problem.stride}"
            if not problem.planar or problem.x.pixel != 1:
                return "it steps over pixels of images that are not planar"
            if _rows(problem) >= _MOST_ROWS:
                return "it is too large for numbers of 32 bits"
        return self._forward.why_not(_turned(problem), machine)

    def why_slow(self, problem: ContractionProblem, machine: Machine) -> str | None:
        return self._forward.why_slow(_turned(problem), machine)

    def price(self, problem: ContractionProblem) -> float:
        return 0.9

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return self._forward.choices(_turned(problem), machine)

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """What turns the filter, which it takes with the turned one; then those of the kernel, and
        what spreads its pixels if it steps over some."""
        forward = self._forward.launches(_turned(problem), choice, machine)
        return [_turning(problem), *forward, *([_spreading(problem)] if _steps(problem) else [])]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        few = at.workspace + _filter_bytes(problem)
        inner = replace(
            at,
            x=at.y + problem.y.offset * problem.y.itemsize,
            w=at.workspace,
            y=few if _steps(problem) else at.x,
            workspace=few + _few_bytes(problem),
        )
        forward = self._forward.arguments(_turned(problem), choice, inner, machine)
        turning: list[KernelArgument] = [at.w, at.workspace, *_turning_numbers(problem)]
        spreading: list[KernelArgument] = [few, at.x, *_spreading_numbers(problem)]
        return [turning, *forward, *([spreading] if _steps(problem) else [])]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        inner = self._forward.workspace(_turned(problem), choice, machine)
        return _filter_bytes(problem) + _few_bytes(problem) + inner

    def shape(self, choice: int) -> object:
        return self._forward.shape(choice)


def _filter_bytes(problem: ContractionProblem) -> int:
    return aligned(prod(problem.w.shape) * problem.x.itemsize)


def _steps(problem: ContractionProblem) -> bool:
    """Whether it steps over pixels."""
    return problem.stride != (1, 1)


def _few_bytes(problem: ContractionProblem) -> int:
    """Of the pixels that it does not step over."""
    few = _turned(problem).y
    return aligned(problem.batch * few.image * few.itemsize) if _steps(problem) else 0


def _turned(problem: ContractionProblem) -> ContractionProblem:
    """The gradient as a convolution of the result's gradient."""
    filters, channels, *window = problem.w.shape
    shape = (channels * problem.groups, filters // problem.groups, *window)
    padding = [
        ((k - 1) * d - before, (k - 1) * d - after)
        for k, d, (before, after) in zip(window, problem.dilation, problem.padding, strict=True)
    ]
    image = problem.x
    if _steps(problem):
        few = replace(image, rows=problem.y.rows, columns=problem.y.columns)
        image = packed(few, problem.planar)
    return replace(
        problem,
        x=problem.y,
        w=TensorSpec(shape, weight_strides(shape, problem.planar), problem.w.dtype),
        y=replace(image, offset=0),
        padding=(padding[0], padding[1]),
        stride=(1, 1),
        direction="forward",
    )


def _is_matrix(problem: ContractionProblem) -> bool:
    """Whether the filter has neither windows nor groups: it is transposed."""
    return problem.groups == 1 and prod(problem.w.shape[2:]) == 1


def _turning(problem: ContractionProblem) -> Launch:
    """The kernel that exchanges filters and channels, and turns windows around."""
    filters, channels = problem.w.shape[:2]
    dtype, size = problem.w.dtype, filters * channels
    if _is_matrix(problem):
        given = Tensor(dtype, channels, filters, 1, size, 1, channels, channels)
        return print_copy(1, given, replace(given, channel=filters, row=1, pixel=1))
    parts = {"T": TYPES[dtype], "PLANAR": str(problem.planar).lower()}
    blocks = -(-prod(problem.w.shape) // _THREADS)
    return Launch(source_of("turn_filter.cu", parts), (blocks, 1, 1), (_THREADS, 1, 1))


def _turning_numbers(problem: ContractionProblem) -> list[int]:
    """What it takes behind both filters."""
    filters, channels, *window = problem.w.shape
    if _is_matrix(problem):
        return []
    return [prod(problem.w.shape), filters // problem.groups, channels, prod(window)]


def _rows(problem: ContractionProblem) -> int:
    """Of all planes."""
    return problem.batch * problem.x.channels * problem.x.rows


def _spreading(problem: ContractionProblem) -> Launch:
    """The kernel that puts pixels where they belong, and zeros between them."""
    blocks = -(-_rows(problem) // (_THREADS // 32))
    return Launch(source_of("spread.cu", {}), (blocks, 1, 1), (_THREADS, 1, 1))


def _spreading_numbers(problem: ContractionProblem) -> list[int]:
    """What it takes behind few pixels and many."""
    x, y = problem.x, problem.y
    lies = (x.channels, x.rows, x.columns, x.image, x.channel, x.row)
    return [_rows(problem), *lies, y.rows, y.columns, *problem.stride]
