"""Products of quads: which problems they compute, and what each scheme takes."""

from __future__ import annotations

from collections.abc import Iterable

from .....fusion.contraction import Parts
from .....graph.types import BYTES
from ...isa import Isa
from ..dots.algorithm import Dots
from ..dots.scheme import DotScheme, packing_of
from ..problem import Problem
from ..stage import PrintedContraction
from .kernel import print_quads
from .scheme import QuadScheme, choose_quads, quad_schemes


class Quads(Dots):
    """Products of four bytes, summed in int32 by instructions for them: exact."""

    name = "products of quads"
    error = 0.0
    factors: tuple[str, ...] = BYTES

    def why_not(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        if not isa.quads:
            return f"{isa.name} has no instructions for it"
        if packing_of(problem, isa.lanes) is None:
            return "its input has few channels a group, or does not lie in blocks of channels"
        return None

    def scheme(self, problem: Problem, has_prologue: bool, isa: Isa, threads: int) -> QuadScheme:
        return choose_quads(problem, isa, threads)

    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[QuadScheme]:
        return quad_schemes(problem, isa)

    def print(self, parts: Parts, scheme: DotScheme, threads: int) -> PrintedContraction:
        assert isinstance(scheme, QuadScheme)
        return print_quads(parts, scheme, threads)
