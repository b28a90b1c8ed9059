"""What is asked of a kernel of ours for contractions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ....runtime.operand import KernelArgument
from ...options import ACCURACIES
from ..kernels import Launch
from ..machine import Machine
from .problem import Addresses, ContractionProblem, Direction

UNFUSED = "nothing is fused with it, and cuDNN computes it as fast"
"""Why kernels are not measured that win where more is computed with a contraction."""


class ContractionKernel(ABC):
    """A kernel, or a few that run one after the other, for one kind of contraction.

    A *choice* is a number that stands for one of its shapes: an index of tiles, streams, strips or
    shapes, how many filters or pixels a block makes, or into how many parts sums are divided.
    Tuning measures choices and remembers the number of the fastest.

    Attributes:
        name: in forms, reports and what is remembered.
        accuracies: for which it is exact enough.
        directions: which of the three contractions of a convolution it computes.
        adds_up: whether it computes what is added up behind the contraction.
        makes_front: whether it computes what stands in front of a gradient.
    """

    name: str
    accuracies: tuple[str, ...] = ACCURACIES
    directions: tuple[Direction, ...] = ("forward",)
    adds_up: bool = False
    makes_front: bool = False

    def refusal(self, problem: ContractionProblem, machine: Machine) -> str | None:
        """Why it is not tried for a problem on a machine; None if it is."""
        if problem.direction not in self.directions:
            return f"it computes no {problem.direction}"
        if problem.accuracy not in self.accuracies:
            return "it is less accurate than direct sums"
        if problem.front is not None and not self.makes_front:
            return "it computes nothing in front of a gradient"
        return self.why_not(problem, machine) or self.why_slow(problem, machine)

    @abstractmethod
    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        """Why it cannot compute a problem; None if it can."""

    def why_slow(self, problem: ContractionProblem, machine: Machine) -> str | None:
        """Why it is not worth measuring for a problem that it can compute; None if it is."""
        return None

    @abstractmethod
    def price(self, problem: ContractionProblem) -> float:
        """What it is taken to need, in multiples of the time of cuDNN's first form, until it has
        been measured.  It orders what is tried and decides nothing else."""

    @abstractmethod
    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        """Choices that are worth measuring, the most promising first."""

    @abstractmethod
    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """The kernels of a choice, for a machine of its size."""

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        """What each kernel takes: by default one takes all pointers in the order of
        :func:`.text.parameters_of`, then its numbers."""
        reads = (at.x, at.w, *at.others, *at.vectors, *at.before)
        return [[*reads, at.y, *self.numbers(problem, choice, machine)]]

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        """Sizes and strides that one kernel takes behind its pointers."""
        return []

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        """Bytes for what one kernel leaves to the next."""
        return 0

    @abstractmethod
    def shape(self, choice: int) -> object:
        """What a choice stands for, as text."""

    def describe(self, choice: int) -> str:
        """A choice by name."""
        return f"{self.name} {self.shape(choice)}"
