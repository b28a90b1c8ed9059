"""The interface of our kernels of contractions.

A kernel says which problems it can compute, by which choices (tile shapes, split-K factors), and
how each is launched; tuning measures the choices beside cuDNN's engines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ....runtime.operand import KernelArgument
from ...options import ACCURACIES
from ..kernels import Launch
from ..machine import Machine
from .problem import Addresses, ContractionProblem, Direction

UNFUSED = "nothing is fused with it, and cuDNN computes it as fast"
"""Why a kernel that wins by fusion alone is not measured where nothing is fused."""


class ContractionKernel(ABC):
    """A kernel, or a few that run one after the other, for one kind of contraction.

    A *choice* is a number that stands for one of its configurations: an index of tile shapes, or
    the number of split-K parts, or both.  Tuning measures choices and remembers the fastest one's
    number.

    Attributes:
        name: in algorithms, reports and the tuning cache.
        accuracies: the accuracy settings for which it is exact enough.
        directions: which of the three contractions of a convolution it computes.
        fuses_reduction: whether it fuses the epilogue reduction.
        fuses_producer: whether it fuses the producer of the gradient that it reads.
        usual_price: what :meth:`price` estimates, unless that depends on the problem.
    """

    name: str
    accuracies: tuple[str, ...] = ACCURACIES
    directions: tuple[Direction, ...] = ("forward",)
    fuses_reduction: bool = False
    fuses_producer: bool = False
    usual_price: float

    def refusal(self, problem: ContractionProblem, machine: Machine) -> str | None:
        """Why it is not tried for a problem on a machine; None if it is."""
        if problem.direction not in self.directions:
            return f"it computes no {problem.direction}"
        if problem.accuracy not in self.accuracies:
            return "it is less accurate than direct sums"
        if problem.producer is not None and not self.fuses_producer:
            return "it fuses no producer into a gradient"
        return self.why_not(problem, machine) or self.why_slow(problem, machine)

    @abstractmethod
    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        """Why it cannot compute a problem; None if it can."""

    def why_slow(self, problem: ContractionProblem, machine: Machine) -> str | None:
        """Why it is not worth measuring for a problem that it can compute; None if it is."""
        return None

    def price(self, problem: ContractionProblem) -> float:
        """Estimates its time, in multiples of that of cuDNN's first algorithm.  The estimate orders
        the candidates and decides nothing else."""
        return self.usual_price

    @abstractmethod
    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        """The choices that are worth measuring, the most promising first."""

    @abstractmethod
    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """The launches of a choice, in order, with grids for that machine."""

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        """The arguments of each launch.  By default there is one, with all pointers in the order
        of :func:`.text.parameters_of`, then its numbers."""
        reads = (at.x, at.w, *at.others, *at.vectors, *at.before)
        return [[*reads, at.y, *self.numbers(problem, choice, machine)]]

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        """Sizes and strides that the one launch takes after its pointers."""
        return []

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        """Bytes of device memory in which launches pass results to the next ones."""
        return 0

    @abstractmethod
    def shape(self, choice: int) -> object:
        """The configuration that a choice stands for, as text."""

    def describe(self, choice: int) -> str:
        """Names a choice in reports: the kernel and its configuration."""
        return f"{self.name} {self.shape(choice)}"
