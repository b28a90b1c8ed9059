"""The algorithms for contractions: the choice of one by predicted time, and candidates to measure.

An algorithm is a file and an entry in :data:`ALGORITHMS`.  Algorithms may round differently, so the
choice by predicted time depends only on shapes, the ISA, the requested accuracy and whether a
prologue is fused: not on threads, on a fused epilogue, or on which tensor a value is a slice of.
So none of these changes a bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ....fusion.region import Parts
from ....graph.ir import Node
from ..isa import Isa
from ..stage import PrintedContraction
from ..tensor import Tensor
from .choose import NOMINAL_THREADS, Algorithm, nominal_speed, scheme_for_any_size
from .direct import Direct
from .dot_product.kernel import DotProduct
from .dot_product.scheme import choose_dot_product
from .problem import Problem, problem_of
from .vnni import Vnni, choose_vnni
from .winograd.algorithm import Winograd
from .winograd.scheme import F2, F4

ALGORITHMS: tuple[Algorithm, ...] = (
    *(Direct(compensated=False), Direct(compensated=True)),
    *(Winograd(F2, 1.0), Winograd(F4, 3.5)),
    *(DotProduct(), Vnni()),
)


@lru_cache(4096)
def choose_algorithm(
    problem: Problem, has_prologue: bool, isa: Isa, accuracy: str = "normal"
) -> Algorithm:
    """The algorithm with the least predicted time among those that are exact enough."""
    speed = nominal_speed(isa)
    # Every algorithm reads residuals in the same way; they must not change the choice.
    bare = replace(problem, others=())

    def seconds(algorithm: Algorithm) -> float:
        return algorithm.seconds(algorithm.scheme(bare, has_prologue, isa, NOMINAL_THREADS), speed)

    usable = usable_algorithms(problem, has_prologue, isa, accuracy)
    return min(usable, key=seconds) if len(usable) > 1 else usable[0]


def usable_algorithms(
    problem: Problem, has_prologue: bool, isa: Isa, accuracy: str
) -> list[Algorithm]:
    """The algorithms that compute a problem, and are accurate enough."""
    return [
        algorithm
        for algorithm in ALGORITHMS
        if accuracy in algorithm.accuracies
        and problem.factors in algorithm.factors
        and algorithm.why_not(problem, has_prologue, isa) is None
    ]


@dataclass(frozen=True)
class Question:
    """All that a choice of algorithm and scheme may depend on.

    Attributes:
        problem: the geometry, with the strides of residuals.
        before, after: scalar operations per element of the prologue and of the epilogue.
        has_prologue: whether a prologue is fused.
        threads: how many compute it together.
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


def refusals(question: Question) -> dict[str, str]:
    """The algorithms that are accurate enough but do not compute a problem, and why."""
    reasons = (
        (algorithm.name, algorithm.why_not(question.problem, question.has_prologue, question.isa))
        for algorithm in ALGORITHMS
        if question.accuracy in algorithm.accuracies
        and question.problem.factors in algorithm.factors
    )
    return {name: reason for name, reason in reasons if reason is not None}


@dataclass(frozen=True)
class Choice:
    """An algorithm, and the scheme by which it computes the problem."""

    algorithm: Algorithm
    scheme: Any


#: A function that makes a choice, by predicted or measured time.
Choose = Callable[[Question], Choice]


def choose_by_price(question: Question) -> Choice:
    """The choice with the least predicted time; only its scheme depends on threads."""
    problem, isa = question.problem, question.isa
    all_images = replace(problem, batch=question.images * problem.batch)
    algorithm = choose_algorithm(all_images, question.has_prologue, isa, question.accuracy)
    scheme = algorithm.scheme(problem, question.has_prologue, isa, question.threads)
    return Choice(algorithm, scheme)


def choose_for_any_size(question: Question) -> Choice:
    """The algorithm and scheme whose kernel serves any spatial size: bf16 dot products or int8 VNNI
    where they compute the problem, and the direct algorithm elsewhere."""
    problem, isa = question.problem, question.isa
    arguments = problem, question.has_prologue, isa, question.accuracy
    usable = {type(algorithm): algorithm for algorithm in usable_algorithms(*arguments)}
    for kind, choose in ((DotProduct, choose_dot_product), (Vnni, choose_vnni)):
        if kind in usable:
            return Choice(usable[kind], choose(problem, isa, question.threads, any_size=True))
    direct = Direct(compensated=question.accuracy == "high")
    shape = problem, question.has_prologue, isa, question.threads
    return Choice(direct, scheme_for_any_size(*shape, direct.compensated))


@dataclass(frozen=True)
class NominalWork:
    """The cost of the algorithm that is chosen for a contraction, on the nominal machine.

    Attributes:
        seconds: time of its arithmetic, with cache misses but without memory traffic.
        weight_bytes: size of its packed weights.
    """

    algorithm: str
    seconds: float
    weight_bytes: int


def work_of(
    node: Node, source: Tensor, result: Tensor, isa: Isa, accuracy: str = "normal"
) -> NominalWork:
    """The cost of a convolution by itself, on tensors of these layouts."""
    problem = problem_of(Parts(node), node.output.shape[0], source, (), result)
    algorithm = choose_algorithm(problem, False, isa, accuracy)
    speed = nominal_speed(isa)
    scheme = algorithm.scheme(problem, False, isa, speed.threads)
    infinite_bandwidth = replace(speed, bandwidth=float("inf"))
    seconds = algorithm.seconds(scheme, infinite_bandwidth)
    return NominalWork(algorithm.name, seconds, algorithm.weight_bytes(scheme))


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
    """The question of which choice to make for a contraction on tensors of these layouts.

    Args:
        batch: images (the first axis of the values; 1 for values of rank 1).
        source, others, result: the layouts of ``parts.source``, ``parts.others``,
            ``parts.result``.  The result must not overlap any other.
        threads: decides about tasks and grain; no bit of the result of a choice by predicted time
            depends on it.
        accuracy: "normal"; "direct" for algorithms with errors not above the direct one's; "high"
            for the least error.
        images: how many times this is computed, image after image; one algorithm serves all.
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


def print_choice(parts: Parts, choice: Choice, threads: int) -> PrintedContraction:
    """Prints the kernels that compute a contraction as was chosen."""
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
) -> PrintedContraction:
    """Prints the kernels of a contraction by ``algorithm``, or by the one predicted to be fastest.

    The arguments are those of :func:`question_of`.
    """
    question = question_of(parts, batch, source, others, result, isa, threads)
    choice = choose_by_price(question)
    if algorithm is not None:
        scheme = algorithm.scheme(question.problem, question.has_prologue, isa, threads)
        choice = Choice(algorithm, scheme)
    return print_choice(parts, choice, threads)


ALGORITHM_MARGIN = 2.5
"""Algorithms whose predicted time is more than so many times the least one are not measured."""

SCHEME_MARGIN = 1.5
"""Schemes whose predicted time is more than so many times that of their algorithm's best are not
measured."""

#: A choice with its predicted time in seconds.
Priced = tuple[float, Choice]


def candidates(question: Question, most: int) -> list[Choice]:
    """The choices that are worth measuring, at most ``most``: first the one by predicted time, then
    the best of each algorithm, then the best for each number of vectors in a register tile, then
    others that differ enough, the fastest first."""
    speed = nominal_speed(question.isa, question.threads)
    problem, isa = question.problem, question.isa
    by_algorithm: list[list[Priced]] = []
    for algorithm in usable_algorithms(problem, question.has_prologue, isa, question.accuracy):
        schemes = algorithm.schemes(problem, question.has_prologue, isa, question.threads)
        choices = [Choice(algorithm, scheme) for scheme in schemes]
        priced = [(algorithm.seconds(choice.scheme, speed), choice) for choice in choices]
        by_algorithm.append(sorted(priced, key=lambda pair: pair[0]))
    fastest = min(priced[0][0] for priced in by_algorithm)
    by_algorithm = [p for p in by_algorithm if p[0][0] <= ALGORITHM_MARGIN * fastest]
    rest = [
        (seconds, choice)
        for priced in by_algorithm
        for seconds, choice in priced
        if seconds <= SCHEME_MARGIN * priced[0][0]
    ]
    order = [priced[0] for priced in by_algorithm]
    order += _best_of_each_width(sorted(rest, key=lambda pair: pair[0]))
    chosen = {kind_of(choice): choice for choice in [choose_by_price(question)]}
    for _, choice in [*order, *sorted(rest, key=lambda pair: pair[0])]:
        chosen.setdefault(kind_of(choice), choice)
    return list(chosen.values())[:most]


def _best_of_each_width(priced: Iterable[Priced]) -> list[Priced]:
    """The first choice of each algorithm with each number of vectors in a register tile."""
    firsts: dict[tuple[str, int], Priced] = {}
    for seconds, choice in priced:
        vectors = choice.algorithm.describe(choice.scheme)["vectors"]
        firsts.setdefault((choice.algorithm.name, vectors), (seconds, choice))
    return list(firsts.values())


def kind_of(choice: Choice) -> tuple[object, ...]:
    """A key that is equal for choices between which measurements find no difference: sizes of
    blocks and chunks are rounded to powers of about 1.4."""
    figures = choice.algorithm.describe(choice.scheme)
    return (
        choice.algorithm.name,
        *(
            round(2 * math.log2(value)) if name in ("block", "chunk") else value
            for name, value in figures.items()
        ),
    )
