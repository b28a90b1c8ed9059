"""The algorithms for contractions, and choosing one by its predicted time.

The choice by price follows from shapes, the ISA and the accuracy that is asked for: not from
threads, from what is absorbed, or from what a value is a slice of.  So none of these changes a bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ....fusion.contraction import Parts
from ....graph.ir import Node
from ...options import ACCURACIES
from ..isa import Isa
from ..tensor import Tensor
from .choose import choose_scheme, schemes_for
from .kernel import print_scheme
from .price import NOMINAL_THREADS, Speed, nominal_speed, predict_seconds
from .problem import Problem, problem_of
from .scheme import Scheme
from .stage import ContractionKernel
from .winograd.kernel import print_winograd
from .winograd.price import candidates, choose_winograd, seconds_of
from .winograd.scheme import WinogradScheme
from .winograd.transform import F2, F4, Transform


class Algorithm(ABC):
    """A way to compute contractions.

    Attributes:
        name: for reports.
        error: its largest error in any layer, about, as a multiple of the direct algorithm's.
        accuracies: for which it is considered.
    """

    name: str
    error: float
    accuracies: tuple[str, ...]

    @abstractmethod
    def unsupported(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
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
    def print(self, parts: Parts, scheme: Any, threads: int) -> ContractionKernel:
        """The kernels."""


class Direct(Algorithm):
    """The sums as they are defined: every shape.  ``compensated``: in short parts, and what adding
    these up rounds off is added at the end; for the least error (whole networks take 1.25 to 1.4
    times as long as with ``accuracy="normal"``, which may choose Winograd)."""

    error = 1.0

    def __init__(self, compensated: bool) -> None:
        self.compensated = compensated
        self.name = "direct, compensated" if compensated else "direct"
        self.accuracies = ("high",) if compensated else ("normal",)

    def unsupported(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        return None

    def scheme(self, problem: Problem, has_prologue: bool, isa: Isa, threads: int) -> Scheme:
        return choose_scheme(problem, has_prologue, isa, threads, self.compensated)

    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[Scheme]:
        return schemes_for(problem, has_prologue, isa, self.compensated)

    def describe(self, scheme: Scheme) -> dict[str, int]:
        tile = scheme.tile
        found = {"rows": tile.rows, "columns": tile.columns, "vectors": tile.vectors}
        gathered = int(scheme.packing == "gathered")
        return {**found, "block": scheme.block, "gathered": gathered}

    def seconds(self, scheme: Scheme, speed: Speed) -> float:
        return predict_seconds(scheme, speed)

    def operations(self, scheme: Scheme) -> int:
        return round(scheme.problem.operations * scheme.taken_rows)

    def weight_bytes(self, scheme: Scheme) -> int:
        return 4 * scheme.groups * scheme.slots * scheme.problem.depth

    def workspace_bytes(self, scheme: Scheme) -> int:
        return 0

    def print(self, parts: Parts, scheme: Scheme, threads: int) -> ContractionKernel:
        return replace(print_scheme(parts, scheme, threads), algorithm=self.name)


class Winograd(Algorithm):
    """Minimal filtering: fewer products, for 3x3 kernels that move by one."""

    def __init__(self, transform: Transform, error: float) -> None:
        self.transform = transform
        self.name = transform.name
        self.error = error
        self.accuracies = ACCURACIES if error <= 1 else ("normal",)

    def unsupported(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        if problem.kernel != (3, 3):
            return f"the kernel is {problem.kernel[0]}x{problem.kernel[1]}, not 3x3"
        if problem.stride != (1, 1) or problem.dilation != (1, 1):
            return f"stride {problem.stride} and dilation {problem.dilation} are not 1"
        if problem.groups > 1:
            return f"it has {problem.groups} groups"
        if has_prologue:
            return "a prologue comes before it"
        source = problem.source
        if source.block != isa.lanes:
            return f"its input does not lie in blocks of {isa.lanes} channels"
        return None

    def scheme(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> WinogradScheme:
        return choose_winograd(problem, self.transform, isa, threads)

    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[WinogradScheme]:
        return candidates(problem, self.transform, isa, threads)

    def describe(self, scheme: WinogradScheme) -> dict[str, int]:
        tile = scheme.tile
        found = {"columns": tile.columns, "vectors": tile.vectors, "chunk": scheme.chunk}
        return {**found, "local": int(scheme.local), "parts": scheme.parts}

    def seconds(self, scheme: WinogradScheme, speed: Speed) -> float:
        return seconds_of(scheme, speed)

    def operations(self, scheme: WinogradScheme) -> int:
        return scheme.operations

    def weight_bytes(self, scheme: WinogradScheme) -> int:
        return scheme.weight_bytes

    def workspace_bytes(self, scheme: WinogradScheme) -> int:
        return scheme.workspace_bytes

    def print(self, parts: Parts, scheme: WinogradScheme, threads: int) -> ContractionKernel:
        return print_winograd(parts, scheme)


ALGORITHMS: tuple[Algorithm, ...] = (
    *(Direct(compensated=False), Direct(compensated=True)),
    *(Winograd(F2, 1.0), Winograd(F4, 3.5)),
)


@lru_cache(4096)
def choose_algorithm(
    problem: Problem, has_prologue: bool, isa: Isa, accuracy: str = "normal"
) -> Algorithm:
    """The algorithm with the least predicted time among those that are exact enough."""
    speed = nominal_speed(isa)
    # Residuals are read by every algorithm alike, and must not change the choice.
    bare = replace(problem, others=())

    def seconds(algorithm: Algorithm) -> float:
        return algorithm.seconds(algorithm.scheme(bare, has_prologue, isa, NOMINAL_THREADS), speed)

    usable = usable_algorithms(problem, has_prologue, isa, accuracy)
    return min(usable, key=seconds) if len(usable) > 1 else usable[0]


def usable_algorithms(
    problem: Problem, has_prologue: bool, isa: Isa, accuracy: str
) -> list[Algorithm]:
    """Those that compute a problem, and are exact enough."""
    return [
        algorithm
        for algorithm in ALGORITHMS
        if accuracy in algorithm.accuracies
        and algorithm.unsupported(problem, has_prologue, isa) is None
    ]


@dataclass(frozen=True)
class Question:
    """What a choice may depend on.

    Attributes:
        problem: with the strides of residuals.
        before, after: scalar operations for an element that are absorbed before and after.
        has_prologue: whether anything is absorbed before.
        threads: that compute it together.
        images: how many times it is computed, image after image, each time by ``threads``.
    """

    problem: Problem
    has_prologue: bool
    before: int
    after: int
    isa: Isa
    accuracy: str
    threads: int
    images: int


@dataclass(frozen=True)
class Choice:
    """An algorithm, and how it computes the problem."""

    algorithm: Algorithm
    scheme: Any


#: Answers questions.
Choose = Callable[[Question], Choice]


def choose_by_price(question: Question) -> Choice:
    """The choice with the least predicted time, of which only the scheme depends on threads."""
    problem, isa = question.problem, question.isa
    whole = replace(problem, batch=question.images * problem.batch)
    algorithm = choose_algorithm(whole, question.has_prologue, isa, question.accuracy)
    scheme = algorithm.scheme(problem, question.has_prologue, isa, question.threads)
    return Choice(algorithm, scheme)


@dataclass(frozen=True)
class Work:
    """What the algorithm that is chosen for a contraction takes on the nominal machine.

    Attributes:
        seconds: of its arithmetic, with what it waits for caches.
        weight_bytes: of its packed weights.
    """

    algorithm: str
    seconds: float
    weight_bytes: int


def work_of(node: Node, source: Tensor, result: Tensor, isa: Isa, accuracy: str = "normal") -> Work:
    """What a convolution by itself takes, on tensors that lie as given."""
    problem = problem_of(Parts(node), node.output.shape[0], source, (), result)
    algorithm = choose_algorithm(problem, False, isa, accuracy)
    speed = nominal_speed(isa)
    scheme = algorithm.scheme(problem, False, isa, speed.threads)
    endless = replace(speed, bandwidth=float("inf"))
    seconds = algorithm.seconds(scheme, endless)
    return Work(algorithm.name, seconds, algorithm.weight_bytes(scheme))


def question_of(
    parts: Parts,
    batch: int,
    source: Tensor,
    others: tuple[Tensor, ...],
    result: Tensor,
    isa: Isa,
    threads: int = 1,
    accuracy: str = "normal",
    images: int = 1,
) -> Question:
    """What is to be chosen for a contraction on tensors that lie as given.

    Args:
        batch: images (the first axis of the values; 1 for values of rank 1).
        source, others, result: where ``parts.source``, ``parts.others``, ``parts.result`` lie.
            The result must not overlap any other.
        threads: decides about tasks and grain; by price no bit of the result depends on it.
        accuracy: "normal", or "high" for algorithms with errors not above the direct one's.
        images: how many times this is computed, image after image; the algorithm is that for all.
    """
    return Question(
        problem_of(parts, batch, source, others, result),
        bool(parts.prologue),
        sum(operation.operations for operation in parts.prologue),
        sum(operation.operations for operation in parts.epilogue),
        isa,
        accuracy,
        threads,
        images,
    )


def print_choice(parts: Parts, choice: Choice, threads: int) -> ContractionKernel:
    """The kernels for a contraction, computed as was chosen."""
    return choice.algorithm.print(parts, choice.scheme, threads)


def print_contraction(
    parts: Parts,
    batch: int,
    source: Tensor,
    others: tuple[Tensor, ...],
    result: Tensor,
    isa: Isa,
    threads: int = 1,
    algorithm: Algorithm | None = None,
) -> ContractionKernel:
    """The kernels for a contraction by ``algorithm``, or by that of the least predicted time.

    The arguments are those of :func:`question_of`.
    """
    question = question_of(parts, batch, source, others, result, isa, threads)
    choice = choose_by_price(question)
    if algorithm is not None:
        scheme = algorithm.scheme(question.problem, question.has_prologue, isa, threads)
        choice = Choice(algorithm, scheme)
    return print_choice(parts, choice, threads)
