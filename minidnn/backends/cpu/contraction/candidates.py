"""What is worth measuring for a contraction: the choices that may be the fastest."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .algorithms import Choice, Question, choose_by_price, usable_algorithms
from .blocking import nominal_speed

ALGORITHM_MARGIN = 2.5
"""Algorithms whose price is so many times the least one are left out."""

SCHEME_MARGIN = 1.5
"""Schemes whose price is so many times that of their algorithm's best are left out."""

Priced = tuple[float, Choice]


def candidates(question: Question, most: int) -> list[Choice]:
    """At most so many choices: first that by price, then the best of each algorithm, then the best
    for each number of vectors in a register tile, then others that differ enough, by price."""
    speed = nominal_speed(question.isa, question.threads)
    problem, isa = question.problem, question.isa
    by_algorithm: list[list[Priced]] = []
    for algorithm in usable_algorithms(problem, question.has_prologue, isa, question.accuracy):
        schemes = algorithm.schemes(problem, question.has_prologue, isa, question.threads)
        choices = [Choice(algorithm, scheme) for scheme in schemes]
        priced = [(algorithm.seconds(choice.scheme, speed), choice) for choice in choices]
        by_algorithm.append(sorted(priced, key=lambda pair: pair[0]))
    least = min(priced[0][0] for priced in by_algorithm)
    by_algorithm = [p for p in by_algorithm if p[0][0] <= ALGORITHM_MARGIN * least]
    rest = [
        (seconds, choice)
        for priced in by_algorithm
        for seconds, choice in priced
        if seconds <= SCHEME_MARGIN * priced[0][0]
    ]
    order = [priced[0] for priced in by_algorithm]
    order += _first_of_each(sorted(rest, key=lambda pair: pair[0]))
    found = {kind_of(choice): choice for choice in [choose_by_price(question)]}
    for _, choice in [*order, *sorted(rest, key=lambda pair: pair[0])]:
        found.setdefault(kind_of(choice), choice)
    return list(found.values())[:most]


def _first_of_each(priced: Iterable[Priced]) -> list[Priced]:
    """The first with each number of vectors."""
    found: dict[tuple[str, int], Priced] = {}
    for seconds, choice in priced:
        vectors = choice.algorithm.describe(choice.scheme)["vectors"]
        found.setdefault((choice.algorithm.name, vectors), (seconds, choice))
    return list(found.values())


def kind_of(choice: Choice) -> tuple[object, ...]:
    """Equal for choices between which measuring finds no difference: sizes of blocks and chunks
    count by factors of about 1.4."""
    described = choice.algorithm.describe(choice.scheme)
    return (
        choice.algorithm.name,
        *(
            round(2 * math.log2(value)) if name in ("block", "chunk") else value
            for name, value in described.items()
        ),
    )
