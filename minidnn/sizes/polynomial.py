"""Integers that follow from named sizes: sums of products of sizes, over a common divisor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import lcm, prod
from typing import Any

from minidnn.dynamic.dim import Dim
from minidnn.errors import GraphError
from minidnn.graph.registry import brief

_MOST_NAMES = 3
"""Names whose sizes may be multiplied, as flattening a batch of planes does it."""

_MOST_TERMS = 64
"""Of a polynomial in a file."""

#: The names that are multiplied in a term, in the order of the dims; none for the constant one.
_Names = tuple[str, ...]


@dataclass(frozen=True)
class SizePolynomial:
    """A number that follows from sizes: the sum of ``coefficient * product of names``, divided by
    ``divisor`` without a rest.

    >>> from minidnn.sizes.polynomial import SizePolynomial
    >>> print(SizePolynomial(((3, ("batch",)), (1, ()))).value({"batch": 4}))
    13
    """

    terms: tuple[tuple[int, _Names], ...]
    divisor: int = 1

    def value(self, sizes: Mapping[str, int]) -> int:
        """The number for these sizes; GraphError if it is none."""
        total = sum(factor * prod(sizes[name] for name in names) for factor, names in self.terms)
        found, rest = divmod(total, self.divisor)
        if rest:
            raise GraphError(f"{self} is no integer for the sizes {dict(sizes)}")
        return found

    def __str__(self) -> str:
        written = [
            "*".join([str(factor)] * (factor != 1 or not names) + list(names))
            for factor, names in self.terms
        ]
        total = " + ".join(written) or "0"
        if self.divisor == 1:
            return total
        return f"({total})/{self.divisor}" if len(written) > 1 else f"{total}/{self.divisor}"

    def to_json(self) -> list[Any]:
        return [[[factor, *names] for factor, names in self.terms], self.divisor]

    @staticmethod
    def from_json(data: Any, known: Sequence[str]) -> SizePolynomial:
        """That of a file; GraphError for anything else, or for names that are not ``known``."""
        match data:
            case [[*terms], divisor] if (
                type(divisor) is int
                and 0 < divisor < 2**63
                and len(terms) <= _MOST_TERMS
                and all(_is_term(term, known) for term in terms)
            ):
                return SizePolynomial(
                    tuple((factor, tuple(names)) for factor, *names in terms), divisor
                )
        raise GraphError(
            f"the size {brief(data)}; valid is [[[factor, name...]...], divisor] with names of "
            f"{list(known)}"
        )


def _is_term(term: Any, known: Sequence[str]) -> bool:
    if not isinstance(term, list) or not 1 <= len(term) <= 1 + _MOST_NAMES:
        return False
    factor, *names = term
    return type(factor) is int and abs(factor) < 2**63 and all(name in known for name in names)


class SizeSamples:
    """The sizes for which a network is looked at, so that what follows from them is found.

    Args:
        dims: the named sizes.

    Attributes:
        points: sizes by name: first the least, then those that decide polynomials, at last those
            that check them.
    """

    def __init__(self, dims: Sequence[Dim]) -> None:
        self.dims = tuple(dims)
        varying = [dim for dim in dims if dim.least < dim.most]
        self._groups = [
            group
            for count in range(min(len(varying), _MOST_NAMES) + 1)
            for group in combinations(varying, count)
        ]
        least = {dim.name: dim.least for dim in dims}
        self.points = [least | {dim.name: dim.most for dim in group} for group in self._groups]
        checks = (
            {dim.name: dim.halfway for dim in dims},
            {dim.name: min(dim.least + dim.multiple, dim.most) for dim in dims},
        )
        for point in checks:
            if point not in self.points:
                self.points.append(point)

    def polynomial(self, values: Sequence[int]) -> SizePolynomial | None:
        """What gives these numbers at the points; None if nothing does."""
        found: dict[_Names, Fraction] = {}
        at = {group: values[place] for place, group in enumerate(self._groups)}
        for group in self._groups:
            # The part of the number in which all sizes of the group take part.
            parts = [part for part in self._groups if set(part) <= set(group)]
            change = sum((-1) ** (len(group) - len(part)) * at[part] for part in parts)
            if change:
                _add(found, group, Fraction(change, prod(dim.most - dim.least for dim in group)))
        divisor = lcm(*(each.denominator for each in found.values()))
        terms = tuple((int(each * divisor), names) for names, each in found.items() if each)
        made = SizePolynomial(terms, divisor)
        for point, value in zip(self.points, values, strict=True):
            try:
                if made.value(point) != value:
                    return None
            except GraphError:  # no integer
                return None
        return made


def _add(found: dict[_Names, Fraction], group: Sequence[Dim], factor: Fraction) -> None:
    """Adds ``factor`` times the product of ``size - least`` over a group's sizes."""
    for count in range(len(group), -1, -1):
        for kept in combinations(group, count):
            names = tuple(dim.name for dim in kept)
            rest = prod(-dim.least for dim in group if dim not in kept)
            found[names] = found.get(names, Fraction(0)) + factor * rest
