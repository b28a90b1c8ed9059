"""Gradients of convolutions for their image, by our kernels of forward convolutions.

One kernel turns the filter around, that is, exchanges filters and channels and reverses windows;
then the forward kernel takes the result's gradient as its image.  The image's gradient of a strided
1x1 convolution has zeros but for the pixels that the convolution reads: the forward kernel computes
these densely, and a last kernel spreads them.
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
    """The gradient by a forward kernel of ours; a choice is that kernel's."""

    directions = (IMAGE_GRADIENT,)
    usual_price = 0.9

    def __init__(self, forward: ContractionKernel) -> None:
        self._forward = forward
        self.name = f"backward {forward.name}"
        self.accuracies = forward.accuracies
        self.fuses_reduction = forward.fuses_reduction
        self.fuses_producer = forward.fuses_producer

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if _steps(problem):
            if problem.w.shape[2:] != (1, 1) or any(map(any, problem.padding)):
                return f"its window has a stride of {problem.stride}"
            if not problem.planar or problem.x.pixel != 1:
                return "it steps over pixels of images that are not planar"
            if _rows(problem) >= _MOST_ROWS:
                return "it is too large for 32-bit indices"
        return self._forward.why_not(_as_forward(problem), machine)

    def why_slow(self, problem: ContractionProblem, machine: Machine) -> str | None:
        return self._forward.why_slow(_as_forward(problem), machine)

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return self._forward.choices(_as_forward(problem), machine)

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """The kernel that turns the filter around, which takes both filters; then the forward
        kernel's launches, and the kernel that spreads pixels if there is a stride."""
        forward = self._forward.launches(_as_forward(problem), choice, machine)
        return [_turning(problem), *forward, *([_spreading(problem)] if _steps(problem) else [])]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        dense_at = at.workspace + _filter_bytes(problem)
        inner = replace(
            at,
            x=at.y + problem.y.offset * problem.y.itemsize,
            w=at.workspace,
            y=dense_at if _steps(problem) else at.x,
            workspace=dense_at + _few_bytes(problem),
        )
        forward = self._forward.arguments(_as_forward(problem), choice, inner, machine)
        turning: list[KernelArgument] = [at.w, at.workspace, *_turning_numbers(problem)]
        spreading: list[KernelArgument] = [dense_at, at.x, *_spreading_numbers(problem)]
        return [turning, *forward, *([spreading] if _steps(problem) else [])]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        inner = self._forward.workspace(_as_forward(problem), choice, machine)
        return _filter_bytes(problem) + _few_bytes(problem) + inner

    def shape(self, choice: int) -> object:
        return self._forward.shape(choice)


def _filter_bytes(problem: ContractionProblem) -> int:
    """Bytes of the filter that is turned around."""
    return aligned(prod(problem.w.shape) * problem.x.itemsize)


def _steps(problem: ContractionProblem) -> bool:
    """Whether the convolution is strided."""
    return problem.stride != (1, 1)


def _few_bytes(problem: ContractionProblem) -> int:
    """Bytes of the dense gradient of those pixels that a strided convolution reads."""
    dense = _as_forward(problem).y
    return aligned(problem.batch * dense.image * dense.itemsize) if _steps(problem) else 0


def _as_forward(problem: ContractionProblem) -> ContractionProblem:
    """The gradient as a problem of a forward convolution, whose image is the result's gradient."""
    filters, channels, *window = problem.w.shape
    shape = (channels * problem.groups, filters // problem.groups, *window)
    padding = [
        ((k - 1) * d - before, (k - 1) * d - after)
        for k, d, (before, after) in zip(window, problem.dilation, problem.padding, strict=True)
    ]
    image = problem.x
    if _steps(problem):
        strided = replace(image, rows=problem.y.rows, columns=problem.y.columns)
        image = packed(strided, problem.planar)
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
    """Whether the filter is a matrix, without windows and groups, so that it is just transposed."""
    return problem.groups == 1 and prod(problem.w.shape[2:]) == 1


def _turning(problem: ContractionProblem) -> Launch:
    """The kernel that exchanges filters and channels, and reverses windows."""
    filters, channels = problem.w.shape[:2]
    dtype, size = problem.w.dtype, filters * channels
    if _is_matrix(problem):
        matrix = Tensor(dtype, channels, filters, 1, size, 1, channels, channels)
        return print_copy(1, matrix, replace(matrix, channel=filters, row=1, pixel=1))
    parts = {"T": TYPES[dtype], "PLANAR": str(problem.planar).lower()}
    blocks = -(-prod(problem.w.shape) // _THREADS)
    return Launch(source_of("transpose_filter.cu", parts), (blocks, 1, 1), (_THREADS, 1, 1))


def _turning_numbers(problem: ContractionProblem) -> list[int]:
    """The numbers that this kernel takes after both filters."""
    filters, channels, *window = problem.w.shape
    if _is_matrix(problem):
        return []
    return [prod(problem.w.shape), filters // problem.groups, channels, prod(window)]


def _rows(problem: ContractionProblem) -> int:
    """Rows of all planes of the image's gradient."""
    return problem.batch * problem.x.channels * problem.x.rows


def _spreading(problem: ContractionProblem) -> Launch:
    """The kernel that spreads pixels at the distances of the stride, with zeros between them."""
    blocks = -(-_rows(problem) // (_THREADS // 32))
    return Launch(source_of("spread.cu", {}), (blocks, 1, 1), (_THREADS, 1, 1))


def _spreading_numbers(problem: ContractionProblem) -> list[int]:
    """The numbers that this kernel takes after the dense and the spread pixels."""
    x, y = problem.x, problem.y
    layout = (x.channels, x.rows, x.columns, x.image, x.channel, x.row)
    return [_rows(problem), *layout, y.rows, y.columns, *problem.stride]
