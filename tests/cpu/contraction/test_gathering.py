"""Strided 1x1 convolutions: read where pixels lie, or with the pixels gathered side by side."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from minidnn.backends.cpu.compilers.library import NativeFunction
from minidnn.backends.cpu.contraction.choose import choose_scheme, schemes_for
from minidnn.backends.cpu.contraction.direct import print_scheme
from minidnn.backends.cpu.contraction.problem import Problem, problem_of
from minidnn.backends.cpu.contraction.scheme import Scheme
from minidnn.backends.cpu.execution.buffers import Guard
from minidnn.backends.cpu.isa import AVX2, AVX512, ISAS, Isa
from minidnn.graph.operators import Add, ReLU, ScaleShift

from .cases import conv
from .harness import Built, Case, build, compile_all, inputs_of, reference, run

BN_RELU = (ScaleShift(), ReLU())
STRIDED = [
    Case("stride-2", (2, 48, 9, 13), 40, op=conv((2, 2)), after=(ReLU(),)),
    Case("stride-3-2", (1, 37, 11, 7), 21, op=conv((3, 2)), after=(Add(), ReLU())),
    Case("stride-1-2", (3, 33, 5, 8), 16, op=conv((1, 2)), slack=16),
    Case("stride-2-1", (2, 40, 8, 5), 56, op=conv((2, 1)), before=BN_RELU),
    Case("stride-groups", (2, 64, 7, 7), 48, op=conv((2, 2), groups=2), before=BN_RELU),
    Case("stride-deep", (1, 1100, 6, 6), 24, op=conv((2, 2))),
]


def problem_of_case(built: Built) -> Problem:
    source, *others, result = built.tensors
    return problem_of(built.parts, built.case.shape[0], source, tuple(others), result)


def by_schemes(case: Case, isa: Isa) -> list[Built]:
    """The case by the first scheme of each packing, and by the last: of other tiles and blocks."""
    built = build(case, isa)
    found: dict[tuple[str, str], Scheme] = {}
    for scheme in schemes_for(problem_of_case(built), bool(case.before), isa):
        found.setdefault((scheme.packing, "first"), scheme)
        found[scheme.packing, "last"] = scheme
    assert {packing for packing, _ in found} == {"gathered", "blocks" if case.before else "none"}
    return [replace(built, kernel=print_scheme(built.parts, each)) for each in found.values()]


@cache
def compiled(isa_name: str) -> dict[Case, list[tuple[Built, list[NativeFunction]]]]:
    """All cases, their kernels compiled together."""
    isa = ISAS[isa_name]
    each = {case: by_schemes(case, isa) for case in STRIDED}
    kernels = iter(compile_all([built for several in each.values() for built in several], isa))
    return {case: [(built, next(kernels)) for built in several] for case, several in each.items()}


@pytest.mark.parametrize("case", STRIDED, ids=str)
def test_gathered_and_in_place_give_the_same_bits(case: Case, isa: Isa) -> None:
    several = compiled(isa.name)[case]
    inputs = inputs_of(several[0][0])
    expected = reference(several[0][0], inputs)
    results = []
    for built, kernels in several:
        for guard in (Guard.END, Guard.START):
            results.append(run(built, kernels, inputs, guard=guard))
    assert np.abs(results[0] - expected).max() < 1e-5 * np.abs(expected).max()
    for result in results[1:]:
        assert np.array_equal(result.view("u4"), results[0].view("u4"))


@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
def test_pixels_are_gathered_where_lines_would_be_fetched_in_vain(isa: Isa) -> None:
    def packing(outputs: int, stride: tuple[int, int]) -> str:
        built = build(Case("case", (4, 256, 28, 28), outputs, op=conv(stride)), isa)
        return choose_scheme(problem_of_case(built), False, isa, 2).packing

    assert packing(1024, (2, 2)) == "gathered"
    assert packing(16, (2, 2)) == "none", "copying takes longer than it saves"
    assert packing(1024, (2, 1)) == "none", "pixels of a row lie side by side"


def test_pixels_that_do_not_lie_in_a_row_are_not_gathered(isa: Isa) -> None:
    repeats = Case(
        "repeats", (2, 48, 9, 13), 40, op=conv((2, 2)), after=(Add(),), repeats=(2, 40, 5, 1)
    )
    padded = Case("padded", (2, 48, 9, 13), 40, op=conv((2, 2), 1))
    plain = Case("plain", (2, 48, 9, 13), 40, op=conv((2, 2), 0))
    for case, gathers in ((repeats, False), (padded, False), (plain, True)):
        schemes = schemes_for(problem_of_case(build(case, isa)), False, isa)
        assert any(scheme.packing == "gathered" for scheme in schemes) == gathers, case
