"""Gradients of convolutions for their image: the filter is turned around, then a kernel of
convolutions takes the result's gradient as its image."""

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
from .problem import IMAGE_GRADIENT, Addresses, ContractionProblem, weight_strides
from .text import source_of

_THREADS = 256


class BackwardKernel(ContractionKernel):
    """The gradient by a kernel of ours for convolutions; a choice is that one's."""

    directions = (IMAGE_GRADIENT,)

    def __init__(self, forward: ContractionKernel) -> None:
        self._forward = forward
        self.name = f"backward {forward.name}"
        self.accuracies = forward.accuracies
        self.adds_up = forward.adds_up

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if problem.stride != (1, 1):
            return f"its stride is {problem.stride}"
        if problem.groups != 1:
            return f"it has {problem.groups} groups"
        return self._forward.why_not(_turned(problem), machine)

    def why_slow(self, problem: ContractionProblem) -> str | None:
        return self._forward.why_slow(_turned(problem))

    def price(self, problem: ContractionProblem) -> float:
        return 0.9

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return self._forward.choices(_turned(problem), machine)

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """What turns the filter, which it takes with the turned one; then those of the kernel."""
        return [_turning(problem), *self._forward.launches(_turned(problem), choice, machine)]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        inner = replace(
            at,
            x=at.y + problem.y.offset * problem.y.itemsize,
            w=at.workspace,
            y=at.x,
            workspace=at.workspace + _filter_bytes(problem),
        )
        forward = self._forward.arguments(_turned(problem), choice, inner, machine)
        return [[at.w, at.workspace, *_turning_numbers(problem)], *forward]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        inner = self._forward.workspace(_turned(problem), choice, machine)
        return _filter_bytes(problem) + inner

    def shape(self, choice: int) -> object:
        return self._forward.shape(choice)


def _filter_bytes(problem: ContractionProblem) -> int:
    return aligned(prod(problem.w.shape) * problem.x.itemsize)


def _turned(problem: ContractionProblem) -> ContractionProblem:
    """The gradient as a convolution of the result's gradient."""
    filters, channels, *window = problem.w.shape
    shape = (channels, filters, *window)
    padding = [
        ((k - 1) * d - before, (k - 1) * d - after)
        for k, d, (before, after) in zip(window, problem.dilation, problem.padding, strict=True)
    ]
    return replace(
        problem,
        x=problem.y,
        w=TensorSpec(shape, weight_strides(shape, problem.planar), problem.w.dtype),
        y=replace(problem.x, offset=0),
        padding=(padding[0], padding[1]),
        direction="forward",
    )


def _turning(problem: ContractionProblem) -> Launch:
    """The kernel that exchanges filters and channels, and turns windows around."""
    filters, channels, *window = problem.w.shape
    dtype, size = problem.w.dtype, filters * channels
    if prod(window) == 1:  # a matrix is transposed
        given = Tensor(dtype, channels, filters, 1, size, 1, channels, channels)
        return print_copy(1, given, replace(given, channel=filters, row=1, pixel=1))
    parts = {"T": TYPES[dtype], "PLANAR": str(problem.planar).lower()}
    blocks = -(-prod(problem.w.shape) // _THREADS)
    return Launch(source_of("turn_filter.cu", parts), (blocks, 1, 1), (_THREADS, 1, 1))


def _turning_numbers(problem: ContractionProblem) -> list[int]:
    """What it takes behind both filters."""
    filters, channels, *window = problem.w.shape
    taps = prod(window)
    return [] if taps == 1 else [prod(problem.w.shape), filters, channels, taps]
