"""Kernels for what is added up behind a contraction: what joins the parts that its blocks leave, or
a sweep of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ....graph.ir import Value
from ...codegen.dialect import literal
from ..kernels import Launch
from ..sum_parts import SumParts, join_parts
from ..sums import SumsLaunches, found_in, print_sums
from ..tensor import Tensor
from .behind import region_of
from .problem import ContractionProblem


@dataclass(frozen=True)
class TileParts(SumParts):
    """What ``blocks`` leave that share tiles of ``size`` pixels in turn."""

    blocks: int = 1

    @property
    def count(self) -> int:
        return self.blocks

    def of_part(self, part: str) -> str:
        tiles = -(-self.packs // self.size)
        missing = literal(float(tiles * self.size - self.packs))
        whole = f"(({tiles - 1} - {part}) / {self.blocks} + 1) * {literal(float(self.size))}"
        return f"({whole} - ({part} == {(tiles - 1) % self.blocks} ? {missing} : 0.0f))"


def tile_parts(problem: ContractionProblem, pixels: int, blocks: int) -> TileParts:
    """The parts of a problem's sums, of blocks that share tiles of so many pixels."""
    assert problem.behind is not None
    y, op = problem.made, region_of(problem.behind)
    dtypes = {i: node.output.dtype for i, node in op.reductions.items()}
    packs = problem.batch * y.rows * y.columns
    return TileParts(found_in(op), dtypes, y.channels, pixels, packs, 1, blocks)


def join_of_parts(problem: ContractionProblem, pixels: int, blocks: int) -> Launch:
    """The kernel that joins such parts; it takes them, then where it writes the sums."""
    return join_parts(tile_parts(problem, pixels, blocks))


@cache
def sweep_of(problem: ContractionProblem) -> SumsLaunches:
    """The kernels that read a problem's result for its sums."""
    behind = problem.behind
    assert behind is not None
    op = region_of(behind)
    lies: dict[Value, Tensor] = {op.body.inputs[0]: problem.made}
    lies |= zip(op.body.inputs[1 : 1 + len(behind.tensors)], behind.tensors, strict=True)
    lies |= zip(op.stored.values(), behind.stored, strict=True)
    return print_sums(op, lies.__getitem__)
