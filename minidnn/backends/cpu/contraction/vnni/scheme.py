"""How a contraction is computed by products of four bytes.

Packed inputs, tiles and blocks of pixels are those of :mod:`..dot_product.scheme`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from ...isa import Isa
from ..dot_product.packed_element import LINE, QUADS, PackedElement
from ..dot_product.scheme import DotScheme, Packing, cheapest, packing_of, schemes_of
from ..problem import Problem


@dataclass(frozen=True)
class VnniScheme(DotScheme):
    """Everything that a printed kernel follows."""

    word: ClassVar[PackedElement] = QUADS

    @property
    def row_terms(self) -> int:
        return _row_terms(self.problem)

    @property
    def terms(self) -> int:
        if self.packing != "unrolled":
            return super().terms
        rows, columns = self.problem.kernel
        return rows * columns * self.row_terms

    @property
    def line_bytes(self) -> int:
        if self.packing != "unrolled":
            return 0
        rows, down = self.problem.kernel[0], self.problem.dilation[0]
        high = (self.shape[0] - 1) * self.problem.stride[0] + (rows - 1) * down + 1
        size = high * self.line_width * self.row_terms + LINE
        return -(-size // 64) * 64

    @property
    def line_width(self) -> int:
        """Columns of a row of inputs, of which what each result reads is copied."""
        columns, across = self.problem.kernel[1], self.problem.dilation[1]
        return (self.shape[1] - 1) * self.problem.stride[1] + (columns - 1) * across + 1

    @property
    def reads_padding(self) -> bool:
        """Bytes are finite: zero times any is zero."""
        return False


def _row_terms(problem: Problem) -> int:
    """Channels of a pixel that lie side by side in rows: three fill a word."""
    planar = problem.source.block == 1
    return 4 if planar and problem.inputs == 3 else problem.inputs


def packing_of_quads(problem: Problem, lanes: int) -> Packing | None:
    """How inputs are packed; None if they lie otherwise than is packed here."""
    found = packing_of(problem, lanes)
    if found != "unrolled":
        return found
    fits = problem.kernel[1] * _row_terms(problem) <= LINE
    return "rows" if fits and problem.dilation[1] == 1 else "unrolled"


@lru_cache(4096)
def choose_quads(problem: Problem, isa: Isa, threads: int, any_size: bool = False) -> VnniScheme:
    """The scheme with the least predicted time; ``any_size``: see :class:`.DotScheme`."""
    return cheapest(quad_schemes(problem, isa, any_size), threads)


def quad_schemes(problem: Problem, isa: Isa, any_size: bool = False) -> Iterator[VnniScheme]:
    """Schemes with blocks of all sizes that fit, or one of the smallest."""
    packing = packing_of_quads(problem, isa.lanes)
    assert packing is not None
    tiles = isa.quads == "tiles"
    yield from schemes_of(VnniScheme, problem, isa, packing, tiles, any_size=any_size)
