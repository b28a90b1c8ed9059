"""Rows of taps that meet only padding are left out, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from minidnn.backends.cpu.compilers.kernels import compile_kernels
from minidnn.backends.cpu.contraction.choose import choose_scheme
from minidnn.backends.cpu.contraction.problem import Problem, problem_of
from minidnn.backends.cpu.isa import AVX2, AVX512, ISAS, Isa
from minidnn.graph.ir import Constant
from minidnn.graph.operators import ReLU, ScaleShift
from tests.sampling import every

from .cases import conv
from .harness import (
    Built,
    Case,
    build,
    compile_all,
    inputs_of,
    largest_error,
    reference,
    run,
)


def generated(count: int) -> list[Case]:
    """Padded convolutions on small maps, with strides, dilations, and a prologue now and then."""
    rng = np.random.default_rng(5)
    cases: list[Case] = []
    while len(cases) < count:
        kernel = (int(rng.integers(2, 8)), int(rng.integers(1, 6)))
        pads = tuple((int(rng.integers(0, k + 1)), int(rng.integers(0, k + 1))) for k in kernel)
        stride = (int(rng.integers(1, 4)), int(rng.integers(1, 3)))
        dilation = (int(rng.integers(1, 4)), int(rng.integers(1, 3)))
        size = (int(rng.integers(1, 15)), int(rng.integers(1, 15)))
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        if any(n + sum(p) < r for n, p, r in zip(size, pads, reach, strict=True)):
            continue
        channels = int(rng.integers(1, 40)) if len(cases) % 3 else 300
        case = Case(
            f"generated-{len(cases)}",
            (2, channels, *size),
            int(rng.integers(1, 70)),
            kernel,
            conv(stride, pads, dilation),
            before=(ScaleShift(), ReLU()) if len(cases) % 4 == 1 else (),
        )
        if scheme_skips(build(case, AVX512), AVX512):
            cases.append(case)
    return cases


def problem_in(built: Built) -> Problem:
    source, *others, result = built.tensors
    batch = built.values[0].type.plane[0]
    return problem_of(built.parts, batch, source, tuple(others), result)


def scheme_skips(built: Built, isa: Isa) -> bool:
    return choose_scheme(problem_in(built), bool(built.case.before), isa, 2).skips


def test_rows_of_taps_are_those_that_meet_an_input() -> None:
    case = Case("plain", (1, 16, 9, 9), 16, (3, 3), conv(pad=1))
    plain = problem_in(build(case, AVX2))
    for size, taps, down, apart, before in product(
        (1, 2, 5, 9), (1, 3, 4), (1, 2, 3), (1, 2, 3), (0, 1, 4)
    ):
        problem = replace(
            plain,
            in_size=(size, 9),
            kernel=(taps, 3),
            stride=(down, 1),
            dilation=(apart, 1),
            padding=((before, 9), (1, 1)),
        )
        for first, rows in product(range(6), (1, 2, 3)):
            begin, end = problem.tap_rows(first, rows)
            assert 0 <= begin <= end <= taps
            for row, tap in product(range(first, first + rows), range(taps)):
                inside = 0 <= row * down - before + tap * apart < size
                assert not inside or begin <= tap < end
            if rows == 1 and begin < end:
                ends = (first * down - before + tap * apart for tap in (begin, end - 1))
                assert all(0 <= y < size for y in ends), "a tap that meets only padding is kept"


@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
def test_what_is_left_out(isa: Isa) -> None:
    def taken(*args: object, **kwargs: object) -> float:
        built = build(Case("case", *args, **kwargs), isa)  # type: ignore[arg-type]
        return choose_scheme(problem_in(built), False, isa, 2).taken_rows

    assert taken((1, 32, 7, 7), 32, (3, 3), conv()) == 1
    assert taken((1, 32, 7, 7), 32) == 1
    assert taken((1, 32, 14, 14), 32, (3, 3), conv(pad=1)) == 40 / 42
    assert taken((1, 32, 17, 17), 32, (7, 1), conv(pad=((3, 3), (0, 0)))) == 107 / 119
    assert taken((1, 32, 17, 17), 32, (1, 7), conv(pad=((0, 0), (3, 3)))) == 1
    assert 19 / 21 <= taken((1, 32, 7, 7), 32, (3, 3), conv(pad=1)) < 1


@pytest.mark.together
@pytest.mark.parametrize("isa", every(2, ISAS), indirect=True)
def test_generated_shapes_agree_with_float64(isa) -> None:
    built = [build(case, isa) for case in generated(12)]
    assert sum(scheme_skips(b, isa) for b in built) >= 10
    for b, kernels in zip(built, compile_all(built, isa), strict=True):
        inputs = inputs_of(b)
        result = run(b, kernels, inputs)
        assert largest_error(result, reference(b, inputs)) < 2e-6, b.case
        again = run(b, kernels, inputs, threads=2, grain=1)
        assert np.array_equal(result.view("u4"), again.view("u4")), b.case


@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
def test_both_instruction_sets_compile(isa: Isa) -> None:
    compile_kernels([s.source for c in generated(2) for s in build(c, isa).kernel.stages], isa)


@pytest.mark.together
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_reach_results_through_padding(isa, value: float) -> None:
    """Zero times infinity is NaN, so nothing is left out then."""
    case = Case("infinite", (1, 20, 7, 6), 40, (3, 3), conv(pad=1))
    built = build(case, isa)
    assert scheme_skips(built, isa)
    weight = built.parts.node.inputs[1]
    assert isinstance(weight, Constant)
    weight.data[[3, 38], [1, 19], [0, 2], 1] = value
    inputs = inputs_of(built)
    with np.errstate(invalid="ignore"):
        wanted = reference(built, inputs)
    (kernels,) = compile_all([built], isa)
    result = run(built, kernels, inputs)
    assert np.isnan(wanted[:, 3, 0]).any()
    assert np.array_equal(np.isnan(result), np.isnan(wanted))
    assert np.array_equal(np.isinf(result), np.isinf(wanted))
