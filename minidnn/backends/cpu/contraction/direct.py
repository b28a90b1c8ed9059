"""The direct algorithm: sums as they are defined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ....fusion.contraction import Parts
from ....fusion.operations import Operation
from ....graph.expression import argument, linearize
from ....graph.ir import Value
from ....graph.operators import Conv2d, Linear
from ....graph.types import BYTES, TensorType
from ..isa import Isa
from .algorithm import Algorithm
from .blocking import Speed, predict_seconds
from .choose import choose_scheme, schemes_for
from .integer_fallback import MOST_EXACT
from .kernel import print_scheme
from .problem import Problem
from .scheme import Scheme
from .stage import PrintedContraction


class Direct(Algorithm):
    """The sums as they are defined: every shape.  ``compensated``: in short parts, and what adding
    these up rounds off is added at the end; for the least error (whole networks take 1.25 to 1.4
    times as long as with ``accuracy="normal"``, which may choose Winograd).  Of bytes, whose sums
    are exact in float32 where they are short."""

    error = 1.0
    factors = ("float32", "bfloat16", *BYTES)

    def __init__(self, compensated: bool) -> None:
        self.compensated = compensated
        self.name = "direct, compensated" if compensated else "direct"
        self.accuracies = ("high",) if compensated else ("normal", "direct")

    def why_not(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        if problem.source.dtype in BYTES and problem.depth > MOST_EXACT:
            return f"sums of {problem.depth} products of bytes have more digits than float32"
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

    def print(self, parts: Parts, scheme: Scheme, threads: int) -> PrintedContraction:
        if parts.source.dtype in BYTES:
            parts = _without_zero(parts)
        return replace(print_scheme(parts, scheme, threads), algorithm=self.name)


def _without_zero(parts: Parts) -> Parts:
    """The same with what stands for 0 taken off the input: so is what a convolution pads."""
    op = parts.node.op
    assert isinstance(op, (Conv2d, Linear)) and not parts.prologue
    given = parts.source
    number = Value(TensorType(given.shape), f"{given.name}.number")
    code = linearize(argument(0) - float(op.zero))
    return replace(parts, prologue=(Operation(number, (given,), code=code),))
