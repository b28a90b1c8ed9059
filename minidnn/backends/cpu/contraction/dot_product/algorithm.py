"""Products of pairs: which problems they compute, and what each scheme takes."""

from __future__ import annotations

from collections.abc import Iterable

from minidnn.fusion.contraction import Parts

from ....options import ACCURACIES
from ...isa import Isa
from ...stage import PrintedContraction
from ..algorithm import Algorithm
from ..blocking import Speed, overlapped
from ..problem import Problem
from .kernel import print_dots
from .scheme import DotScheme, choose_dots, dot_schemes, merge, packing_of_pairs


class DotProduct(Algorithm):
    """Products of pairs of values in bfloat16, summed in float32 by instructions for them."""

    name = "products of pairs"
    error = 1.0
    accuracies = ACCURACIES
    factors: tuple[str, ...] = ("bfloat16",)

    def why_not(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        if not isa.products:
            return f"{isa.name} has no instructions for it"
        if packing_of_pairs(merge(problem, isa.lanes), isa.lanes) is None:
            return "its input has few channels a group, or does not lie in blocks of channels"
        return None

    def scheme(self, problem: Problem, has_prologue: bool, isa: Isa, threads: int) -> DotScheme:
        return choose_dots(problem, isa, threads)

    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[DotScheme]:
        return dot_schemes(problem, isa)

    def describe(self, scheme: DotScheme) -> dict[str, int]:
        return {"pixels": scheme.pixels, "vectors": scheme.tile.vectors, "block": scheme.block} | (
            {"images": scheme.images} if scheme.images > 1 else {}
        )

    def seconds(self, scheme: DotScheme, speed: Speed) -> float:
        clock = speed.flops / speed.threads / (4 * scheme.lanes)
        moved = scheme.weight_bytes
        if scheme.moved_bytes > speed.cache // 2:
            moved += scheme.moved_bytes
        return overlapped(scheme.cycles / clock / speed.threads, moved / speed.bandwidth)

    def operations(self, scheme: DotScheme) -> int:
        return scheme.problem.operations // scheme.merged

    def weight_bytes(self, scheme: DotScheme) -> int:
        return scheme.weight_bytes

    def workspace_bytes(self, scheme: DotScheme) -> int:
        return 0

    def print(self, parts: Parts, scheme: DotScheme, threads: int) -> PrintedContraction:
        return print_dots(parts, scheme, threads)
