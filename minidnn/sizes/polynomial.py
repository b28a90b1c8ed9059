"""Polynomials of named sizes: integers that are sums of products of sizes, over a divisor.

:class:`SizeSamples` finds them by interpolation between a few sizes, for which a network is traced.
"""

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
"""Names that one term multiplies at most: flattening a batch of images multiplies three."""

_MOST_TERMS = 64
"""Terms of a polynomial in a file at most."""

#: The names that a term multiplies, in the order of the dims; none for the constant term.
_Names = tuple[str, ...]


@dataclass(frozen=True)
class SizePolynomial:
    """An integer that follows from named sizes: the sum of ``coefficient * product of sizes``,
    divided by ``divisor`` without a remainder.

    >>> from minidnn.sizes.polynomial import SizePolynomial
    >>> print(SizePolynomial(((3, ("batch",)), (1, ()))).value({"batch": 4}))
    13
    """

    terms: tuple[tuple[int, _Names], ...]
    divisor: int = 1

    def value(self, sizes: Mapping[str, int]) -> int:
        """The integer for these sizes; GraphError if the division has a remainder."""
        total = sum(factor * prod(sizes[name] for name in names) for factor, names in self.terms)
        quotient, remainder = divmod(total, self.divisor)
        if remainder:
            raise GraphError(f"{self} is no integer for the sizes {dict(sizes)}")
        return quotient

    def __str__(self) -> str:
        summands = [
            "*".join([str(factor)] * (factor != 1 or not names) + list(names))
            for factor, names in self.terms
        ]
        total = " + ".join(summands) or "0"
        if self.divisor == 1:
            return total
        return f"({total})/{self.divisor}" if len(summands) > 1 else f"{total}/{self.divisor}"

    def to_json(self) -> list[Any]:
        """The polynomial as files have it: ``[[[factor, name...]...], divisor]``."""
        return [[[factor, *names] for factor, names in self.terms], self.divisor]

    @staticmethod
    def from_json(data: Any, known: Sequence[str]) -> SizePolynomial:
        """The polynomial of a file; GraphError if it is none, or has names other than ``known``."""
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
    """The sizes for which a network is traced, so that its integers can be interpolated.

    Args:
        dims: the named sizes.

    Attributes:
        points: sizes by name: first all least sizes, then the other points of interpolation, and
            last the points that only check a polynomial.
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
        """The polynomial with these values at the points; None if there is none."""
        coefficients: dict[_Names, Fraction] = {}
        at = {group: values[place] for place, group in enumerate(self._groups)}
        for group in self._groups:
            # The coefficient of the product of all sizes of the group, by finite differences.
            subsets = [subset for subset in self._groups if set(subset) <= set(group)]
            change = sum((-1) ** (len(group) - len(subset)) * at[subset] for subset in subsets)
            if change:
                _add(
                    coefficients,
                    group,
                    Fraction(change, prod(dim.most - dim.least for dim in group)),
                )
        divisor = lcm(*(each.denominator for each in coefficients.values()))
        terms = tuple((int(each * divisor), names) for names, each in coefficients.items() if each)
        polynomial = SizePolynomial(terms, divisor)
        for point, value in zip(self.points, values, strict=True):
            try:
                if polynomial.value(point) != value:
                    return None
            except GraphError:  # no integer
                return None
        return polynomial


def _add(found: dict[_Names, Fraction], group: Sequence[Dim], factor: Fraction) -> None:
    """Adds ``factor`` times the product of ``size - least`` over a group's sizes."""
    for count in range(len(group), -1, -1):
        for kept in combinations(group, count):
            names = tuple(dim.name for dim in kept)
            rest = prod(-dim.least for dim in group if dim not in kept)
            found[names] = found.get(names, Fraction(0)) + factor * rest
