"""Gradients of 1x1 convolutions for their image: the filter is turned, then pixels of the result's
gradient stream past it."""

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
from ..tensor import Tensor
from .kernel import ContractionKernel
from .problem import IMAGE_GRADIENT, Addresses, ContractionProblem
from .stream import StreamKernel

_STREAM = StreamKernel()


class BackwardStreamKernel(ContractionKernel):
    """Streams of gradients; a choice is a stream's."""

    name = "backward stream"
    directions = (IMAGE_GRADIENT,)
    adds_up = True

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if not problem.is_pointwise or problem.dilation != (1, 1):
            return "it is no product of pixels and filters"
        return _STREAM.why_not(_turned(problem), machine)

    def why_slow(self, problem: ContractionProblem) -> str | None:
        return _STREAM.why_slow(_turned(problem))

    def price(self, problem: ContractionProblem) -> float:
        return 0.9

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return _STREAM.choices(_turned(problem), machine)

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """What turns the filter, which it takes with the turned one; then those of a stream."""
        filters, channels = problem.w.shape[:2]
        dtype, size = problem.w.dtype, filters * channels
        given = Tensor(dtype, channels, filters, 1, size, 1, channels, channels)
        turned = Tensor(dtype, channels, filters, 1, size, filters, 1, 1)
        copy = print_copy(1, given, turned)
        return [copy, *_STREAM.launches(_turned(problem), choice, machine)]

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
        streamed = _STREAM.arguments(_turned(problem), choice, inner, machine)
        return [[at.w, at.workspace], *streamed]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        sums = _STREAM.workspace(_turned(problem), choice, machine)
        return _filter_bytes(problem) + sums

    def shape(self, choice: int) -> object:
        return _STREAM.shape(choice)


def _filter_bytes(problem: ContractionProblem) -> int:
    return aligned(prod(problem.w.shape) * problem.x.itemsize)


def _turned(problem: ContractionProblem) -> ContractionProblem:
    """The gradient as a convolution of the result's gradient."""
    filters, channels, *window = problem.w.shape
    shape = (channels, filters, *window)
    w = TensorSpec(shape, (filters, 1, filters, filters), problem.w.dtype)
    return replace(problem, x=problem.y, w=w, y=problem.x, direction="forward")
