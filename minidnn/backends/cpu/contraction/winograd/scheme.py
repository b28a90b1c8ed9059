"""The transforms of Winograd's algorithm, and its scheme: transform, register tile, chunks.

A transform F(m x m, 3 x 3) is defined by its points.  A tile of n x n inputs (n = m + 2) gives
m x m results: ``y = A' [(G g G') * (B' d B)] A``, with the product taken element by element and
summed over channels (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016).
A, B and G follow from n - 1 points and the one at infinity (Cook and Toom): here 0 and pairs +-p.
The points determine rounding errors: with +-5/8 and +-3/2 the error of F(4x4) is half of that with
the usual +-1 and +-2: see docs/explanation/numerics-and-determinism.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from ....._cached_property import cached_property
from ....codegen.code import Code
from ....codegen.dialect import literal
from ...execution.buffers import Array
from ..problem import BlockedView, Pair, Problem
from ..scheme import LINE_FLOATS, Scheme, Tile

#: A factor, and the name of what it is multiplied with.
Term = tuple[float, str]
#: Returns the name of the i-th number of a column or row.
Named = Callable[[int], str]


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
        """G, the matrix (n, 3) that transforms weights, in float64."""
        rows = []
        for p in self._points:
            scale = Fraction(1)
            for q in self._points:
                scale *= p - q if q != p else 1
            rows.append([1 / scale, p / scale, p * p / scale])
        return np.array([*rows, [0, 0, 1]], np.float64)

    @property
    def input_parts(self) -> list[range]:
        """The rows of B' that share their arithmetic: of point 0, of each pair, of infinity."""
        pairs = [range(2 * i + 1, 2 * i + 3) for i in range(len(self.pairs))]
        return [range(1), *pairs, range(self.inputs - 1, self.inputs)]

    def print_inputs(self, code: Code, part: int, d: Named) -> list[str]:
        """Prints the rows of B' d of one of :attr:`input_parts`; returns the names of its results.

        The polynomial of point p without its own factor is (x^2 + p x) E(x^2), so the rows of p
        and -p are the sum and the difference of an even and an odd part.
        """
        coefficients = _product(self.pairs)
        if part == 0:
            return [_sum(code, [(c, d(2 * k)) for k, c in enumerate(coefficients)])]
        if part > len(self.pairs):
            return [_sum(code, [(c, d(2 * k + 1)) for k, c in enumerate(coefficients)])]
        p = float(self.pairs[part - 1])
        others = _product(self.pairs[: part - 1] + self.pairs[part:])
        even = _sum(code, [(c, d(2 * k + 2)) for k, c in enumerate(others)])
        odd = _sum(code, [(c, d(2 * k + 1)) for k, c in enumerate(others)])
        return [_sum(code, [(1.0, even), (sign * p, odd)]) for sign in (1, -1)]

    def print_outputs(self, code: Code, rows: Sequence[int], d: Named) -> list[str]:
        """Prints these rows of A' d; returns the names of their results.

        Even rows need the sums of the numbers of p and -p, odd rows the differences.
        """
        one = 1.0
        points = [float(p) for p in self.pairs]
        combined = {
            odd: [
                _sum(code, [(one, d(2 * i + 1)), (-one if odd else one, d(2 * i + 2))])
                for i in range(len(self.pairs))
            ]
            for odd in sorted({k % 2 for k in rows})
        }
        results = []
        for k in rows:
            pairs = zip(points, combined[k % 2], strict=True)
            terms = [(p**k, part) for p, part in pairs]
            if k == 0:
                terms.insert(0, (one, d(0)))
            if k == self.outputs - 1:
                terms.append((one, d(self.inputs - 1)))
            results.append(_sum(code, terms))
        return results


F2 = Transform((Fraction(1),))
F4 = Transform((Fraction(5, 8), Fraction(3, 2)))


@cache
def _product(pairs: tuple[Fraction, ...]) -> tuple[float, ...]:
    """The coefficients of the product of (x - p^2) over all p, the lowest power first; floats hold
    them exactly."""
    coefficients = [Fraction(1)]
    for p in pairs:
        next_coefficients = [Fraction(0), *coefficients]
        for k, c in enumerate(coefficients):
            next_coefficients[k] -= c * p * p
        coefficients = next_coefficients
    exact = tuple(map(float, coefficients))
    assert list(exact) == coefficients, f"{coefficients} are no floats"
    return exact


def _sum(code: Code, terms: Sequence[Term]) -> str:
    """Prints a sum of products, and returns its name; terms with a factor of 1 come first, and each
    other term is one fma."""
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


def _number(value: float) -> str:
    assert float(np.float32(value)) == value, f"{value} is no float32"
    return literal(value)


PARTS = 4
LEAST_TERMS = 16
MOST_TERMS = {2: 32, 4: 64}
"""Sums over channels are split into ``PARTS`` partial sums, of at least and at most so many terms
(``MOST_TERMS`` by rows of results of a tile).  The transform back magnifies the rounding errors of
these sums, which are most of a result's error.  A partial sum costs the same share of the time in
all layers; shorter ones reduce errors most in the first layers, whose errors all others magnify,
and which have few channels: see docs/explanation/numerics-and-determinism.md.  F(2x2) also serves
callers that want no more than the direct algorithm's error."""


@dataclass(frozen=True)
class WinogradScheme:
    """All decisions about the kernels of a Winograd convolution; their text follows from them.

    The n x n products of a tile are n * n matrix products: inputs x tiles times outputs x inputs.

    Attributes:
        tile: the register tile of these products; its pixels are Winograd tiles.
        chunk: Winograd tiles that are transformed together, a multiple of ``tile.columns``.
        local: whether a task transforms a chunk, multiplies and transforms back, all in its
            thread's scratch.  Else these are three kernels over all tiles, with workspace between
            them: weights are then read once.
        parts: tasks that share the groups of output channels of one matrix product (if not local).
    """

    problem: Problem
    lanes: int
    transform: Transform
    tile: Tile
    chunk: int
    local: bool
    parts: int = 1

    @property
    def tiles(self) -> Pair:
        """Tiles of an image, down and across."""
        rows, columns = (-(-size // self.transform.outputs) for size in self.problem.out_size)
        return rows, columns

    @property
    def count(self) -> int:
        """Tiles of all images."""
        return self.problem.batch * self.tiles[0] * self.tiles[1]

    @property
    def chunks(self) -> int:
        return -(-self.count // self.chunk)

    @property
    def input_blocks(self) -> int:
        return -(-self.problem.in_channels // self.lanes)

    @property
    def output_blocks(self) -> int:
        return -(-self.problem.out_channels // self.lanes)

    @property
    def matrices(self) -> int:
        """The number of matrix products: one for each element of a transformed tile."""
        return self.transform.inputs**2

    @property
    def plane(self) -> int:
        """Floats from one block of channels to the next, of transformed inputs and of products."""
        return self.chunk * self.lanes

    @property
    def source_matrix(self) -> int:
        """Floats from one matrix of transformed inputs to the next."""
        return _odd_lines(self.input_blocks * self.plane)

    @property
    def product_matrix(self) -> int:
        """Floats from one matrix of products to the next; a local kernel's matrices have one group
        of channels."""
        blocks = self.tile.vectors if self.local else self.output_blocks
        return _odd_lines(blocks * self.plane)

    @property
    def source_bytes(self) -> int:
        return 4 * self.matrices * self.source_matrix

    @property
    def product_bytes(self) -> int:
        return 4 * self.matrices * self.product_matrix

    @property
    def operations(self) -> int:
        """Arithmetic operations of the matrix products, two for a multiply-add."""
        return 2 * self.matrices * self.count * self.problem.in_channels * self.problem.out_channels

    @property
    def weight_bytes(self) -> int:
        return 4 * self.matrices * self.problem.in_channels * self.output_blocks * self.lanes

    @property
    def zeros_bytes(self) -> int:
        """Bytes of the row of zeros that tiles at the border read instead of padding."""
        return 4 * self.transform.inputs * self.lanes

    @property
    def kept_bytes(self) -> int:
        """Bytes of the unfinished sums of a register tile, between its partial sums."""
        tile = self.tile
        return 4 * tile.columns * tile.vectors * self.lanes if self.product.part else 0

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch of a thread that runs the local kernel."""
        origins = 3 * 4 * self.chunk
        return self.source_bytes + self.product_bytes + self.zeros_bytes + self.kept_bytes + origins

    @property
    def workspace_bytes(self) -> int:
        return 0 if self.local else self.source_bytes + self.product_bytes

    @cached_property
    def product(self) -> Scheme:
        """The scheme of one matrix product as a 1x1 convolution of a row of pixels: the tiles."""
        problem, lanes = self.problem, self.lanes
        view = BlockedView(problem.in_channels, 0, self.plane, lanes, 0, lanes)
        product = Problem(
            batch=1,
            groups=1,
            in_channels=problem.in_channels,
            out_channels=problem.out_channels,
            in_size=(1, self.chunk),
            out_size=(1, self.chunk),
            kernel=(1, 1),
            stride=(1, 1),
            dilation=(1, 1),
            padding=((0, 0), (0, 0)),
            source=view,
            result=BlockedView(problem.out_channels, 0, self.plane, lanes, 0, lanes),
            others=(),
        )
        unit = min(lanes, problem.in_channels)
        part = max(1, round(part_terms(problem.in_channels, self.transform.outputs) / unit))
        return Scheme(product, lanes, self.tile, self.chunk, "none", unit, 0, part, near=True)

    @cached_property
    def result(self) -> Scheme:
        """The scheme that the epilogue follows: tiles of m x m pixels, one vector of channels."""
        m, lanes = self.transform.outputs, self.lanes
        tile = Tile(m, m, 1, self.output_blocks, 0)
        return Scheme(self.problem, lanes, tile, self.problem.out_size[0], "none", lanes, 0)


def part_terms(terms: int, outputs: int) -> int:
    """Terms of a partial sum of ``terms`` terms, for tiles of ``outputs`` x ``outputs`` results."""
    return min(MOST_TERMS[outputs], max(LEAST_TERMS, terms // PARTS))


def _odd_lines(floats: int) -> int:
    """The least odd number of cache lines that holds as many floats, in floats.

    Transforms access the same element of every matrix: with an even number of lines as their
    stride, these would map to few sets of a cache.
    """
    lines = -(-floats // LINE_FLOATS)
    return (lines | 1) * LINE_FLOATS
