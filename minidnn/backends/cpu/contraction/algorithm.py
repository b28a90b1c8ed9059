"""What is asked of an algorithm for contractions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from ....fusion.contraction import Parts
from ..isa import Isa
from ..stage import PrintedContraction
from .choose import Speed
from .problem import Problem


class Algorithm(ABC):
    """A way to compute contractions.

    Attributes:
        name: for reports.
        error: its largest error in any layer, about, as a multiple of the direct algorithm's.
        accuracies: for which it is considered.
        factors: dtypes of the numbers that it multiplies.
    """

    name: str
    error: float
    accuracies: tuple[str, ...]
    factors: tuple[str, ...] = ("float32",)

    @abstractmethod
    def why_not(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        """Why it does not compute this problem; None if it does."""

    @abstractmethod
    def scheme(self, problem: Problem, has_prologue: bool, isa: Isa, threads: int) -> Any:
        """How it would, on that many threads."""

    @abstractmethod
    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[Any]:
        """All the ways in which it can; the bits of the result are the same."""

    @abstractmethod
    def describe(self, scheme: Any) -> dict[str, int]:
        """What makes a scheme another one than its problem's others."""

    @abstractmethod
    def seconds(self, scheme: Any, speed: Speed) -> float:
        """The predicted time."""

    @abstractmethod
    def operations(self, scheme: Any) -> int:
        """Its products and their sums, with two for a multiply-add; transforms do not count."""

    @abstractmethod
    def weight_bytes(self, scheme: Any) -> int:
        """Packed weights."""

    @abstractmethod
    def workspace_bytes(self, scheme: Any) -> int:
        """Memory beside the threads' scratch."""

    @abstractmethod
    def print(self, parts: Parts, scheme: Any, threads: int) -> PrintedContraction:
        """The kernels."""
