"""Winograd's algorithm: which problems it computes, and what each scheme takes."""

from __future__ import annotations

from collections.abc import Iterable

from .....fusion.contraction import Parts
from ....options import ACCURACIES
from ...isa import Isa
from ..algorithm import Algorithm
from ..blocking import Speed
from ..problem import Problem
from ..stage import PrintedContraction
from .kernel import print_winograd
from .price import candidates, choose_winograd, seconds_of
from .scheme import WinogradScheme
from .transform import Transform


class Winograd(Algorithm):
    """Minimal filtering: fewer products, for 3x3 kernels that move by one."""

    def __init__(self, transform: Transform, error: float) -> None:
        self.transform = transform
        self.name = transform.name
        self.error = error
        self.accuracies = ACCURACIES if error <= 1 else ("normal",)

    def why_not(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        if problem.kernel != (3, 3):
            return f"the kernel is {problem.kernel[0]}x{problem.kernel[1]}, not 3x3"
        if problem.stride != (1, 1) or problem.dilation != (1, 1):
            return f"stride {problem.stride} and dilation {problem.dilation} are not 1"
        if problem.groups > 1:
            return f"it has {problem.groups} groups"
        if has_prologue:
            return "a prologue comes before it"
        source = problem.source
        if source.block != isa.lanes:
            return f"its input does not lie in blocks of {isa.lanes} channels"
        return None

    def scheme(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> WinogradScheme:
        return choose_winograd(problem, self.transform, isa, threads)

    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[WinogradScheme]:
        return candidates(problem, self.transform, isa, threads)

    def describe(self, scheme: WinogradScheme) -> dict[str, int]:
        tile = scheme.tile
        found = {"columns": tile.columns, "vectors": tile.vectors, "chunk": scheme.chunk}
        return {**found, "local": int(scheme.local), "parts": scheme.parts}

    def seconds(self, scheme: WinogradScheme, speed: Speed) -> float:
        return seconds_of(scheme, speed)

    def operations(self, scheme: WinogradScheme) -> int:
        return scheme.operations

    def weight_bytes(self, scheme: WinogradScheme) -> int:
        return scheme.weight_bytes

    def workspace_bytes(self, scheme: WinogradScheme) -> int:
        return scheme.workspace_bytes

    def print(self, parts: Parts, scheme: WinogradScheme, threads: int) -> PrintedContraction:
        return print_winograd(parts, scheme)
