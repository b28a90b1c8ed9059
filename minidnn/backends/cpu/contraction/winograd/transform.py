"""Winograd's transforms F(m x m, 3 x 3), from their points.

A tile of n x n inputs (n = m + 2) gives m x m results: ``y = A' [(G g G') * (B' d B)] A``, with the
product taken element by element and summed over channels (Lavin and Gray, "Fast algorithms for
convolutional neural networks", 2016).  A, B and G follow from n - 1 points and the one at infinity
(Cook and Toom): here 0 and pairs +-p.  The points decide about rounding: with +-3/4 and +-3/2 the
largest error of F(4x4) is less than half of that with the usual +-1 and +-2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from ...buffers import Array
from ...code import Code
from ...scalar import literal

Term = tuple[Fraction, str]


@dataclass(frozen=True)
class Transform:
    """F(m x m, 3 x 3) for the points 0, +-p for p in ``pairs``, and infinity."""

    pairs: tuple[Fraction, ...]

    @property
    def inputs(self) -> int:
        """Rows and columns of a tile of inputs (n)."""
        return 2 * len(self.pairs) + 2

    @property
    def outputs(self) -> int:
        """Rows and columns of a tile of results (m)."""
        return 2 * len(self.pairs)

    @property
    def name(self) -> str:
        return f"F({self.outputs}x{self.outputs}, 3x3)"

    @property
    def _points(self) -> list[Fraction]:
        return [Fraction(0), *(sign * p for p in self.pairs for sign in (1, -1))]

    @cached_property
    def weights(self) -> Array:
        """G: (n, 3), float64."""
        rows = []
        for p in self._points:
            scale = Fraction(1)
            for q in self._points:
                scale *= p - q if q != p else 1
            rows.append([1 / scale, p / scale, p * p / scale])
        return np.array([*rows, [0, 0, 1]], np.float64)

    def transform_weights(self, weight: Array) -> Array:
        """(O, I, 3, 3) as (O, I, n, n), computed and returned in float64."""
        whole = np.kron(self.weights, self.weights)
        flat = weight.reshape(-1, 9).astype(np.float64) @ whole.T
        return flat.reshape(*weight.shape[:2], self.inputs, self.inputs)

    def print_inputs(self, code: Code, d: Sequence[str]) -> list[str]:
        """Lines for B' d; the names of the n results.

        The polynomial of point p without its own factor is (x^2 + p x) E(x^2), so the rows of p
        and -p are the sum and the difference of an even and an odd part.
        """
        whole = _product(self.pairs)
        results = [_sum(code, [(c, d[2 * k]) for k, c in enumerate(whole)])]
        for p in self.pairs:
            others = _product([q for q in self.pairs if q != p])
            even = _sum(code, [(c, d[2 * k + 2]) for k, c in enumerate(others)])
            odd = _sum(code, [(c, d[2 * k + 1]) for k, c in enumerate(others)])
            results += [_sum(code, [(Fraction(1), even), (s * p, odd)]) for s in (1, -1)]
        return [*results, _sum(code, [(c, d[2 * k + 1]) for k, c in enumerate(whole)])]

    def print_outputs(self, code: Code, d: Sequence[str]) -> list[str]:
        """Lines for A' d; the names of the m results."""
        one = Fraction(1)
        sums, differences = [], []
        for i in range(len(self.pairs)):
            plus, minus = d[2 * i + 1], d[2 * i + 2]
            sums.append(_sum(code, [(one, plus), (one, minus)]))
            differences.append(_sum(code, [(one, plus), (-one, minus)]))
        results = []
        for k in range(self.outputs):
            parts = differences if k % 2 else sums
            terms = [(p**k, part) for p, part in zip(self.pairs, parts, strict=True)]
            if k == 0:
                terms.insert(0, (one, d[0]))
            if k == self.outputs - 1:
                terms.append((one, d[-1]))
            results.append(_sum(code, terms))
        return results


F2 = Transform((Fraction(1),))
F4 = Transform((Fraction(3, 4), Fraction(3, 2)))


def _product(pairs: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients of the product of (x - p^2), lowest first."""
    whole = [Fraction(1)]
    for p in pairs:
        longer = [Fraction(0), *whole]
        for k, c in enumerate(whole):
            longer[k] -= c * p * p
        whole = longer
    return whole


def _sum(code: Code, terms: Sequence[Term]) -> str:
    """The name of a sum of products; those by one come first, each other is one fma."""
    ordered = sorted((t for t in terms if t[0]), key=lambda term: abs(term[0]) != 1)
    (first, name), *rest = ordered
    text = f"-{name}" if first < 0 else name
    if abs(first) != 1:
        text = f"{name} * {_number(first)}"
    for factor, name in rest:
        if abs(factor) == 1:
            text = f"({text}) {'+' if factor > 0 else '-'} {name}"
        else:
            text = f"md_fma({name}, {_number(factor)}, {text})"
    result = code.fresh()
    code.line(f"const float {result} = {text};")
    return result


def _number(value: Fraction) -> str:
    assert Fraction(float(np.float32(float(value)))) == value, f"{value} is no float32"
    return literal(float(value))
