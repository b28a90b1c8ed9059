"""Mean and variance of a contraction's result: what blocks leave that make it, or a sweep of its
own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ....fusion.region import FusedSums
from ....graph.ir import Graph, Node, Value
from ....graph.operators import Reduce, Variance
from ....graph.types import TensorType
from ...codegen.dialect import literal
from ..sum_parts import MeanAndVariance, SumParts
from ..sums import SumsLaunches, print_sums
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
    """The parts of a problem's mean and variance, of blocks that share tiles of so many pixels."""
    y = problem.y
    node = _region(problem).reductions[1]
    dtypes = dict.fromkeys(range(2), "float32")
    packs = problem.batch * y.rows * y.columns
    return TileParts((MeanAndVariance(node, 1, 0),), dtypes, y.channels, pixels, packs, 1, blocks)


@cache
def sweep_of(problem: ContractionProblem) -> SumsLaunches:
    """The kernels that read a problem's result for its mean and variance."""
    return print_sums(_region(problem), lambda value: problem.y)


def _region(problem: ContractionProblem) -> FusedSums:
    y = problem.y
    x = Value(TensorType((problem.batch, y.channels, y.rows, y.columns), y.dtype), "y")
    mean = Node(Reduce("mean", (0, 2, 3), dtype="float32"), [x], "mean")
    variance = Node(Variance("float32"), [x, mean.output], "variance")
    return FusedSums(Graph([x], [mean.output, variance.output], [mean, variance], "statistics"))
