"""Winograd's algorithms: transforms, every size against float64, what must not change a bit."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from minidnn.backends.codegen.code import Code
from minidnn.backends.cpu.compilers.library import NativeFunction
from minidnn.backends.cpu.contraction import algorithms
from minidnn.backends.cpu.contraction.algorithms import choose_algorithm
from minidnn.backends.cpu.contraction.problem import problem_of
from minidnn.backends.cpu.contraction.winograd import algorithm
from minidnn.backends.cpu.contraction.winograd.scheme import F2, F4
from minidnn.backends.cpu.execution.buffers import Guard
from minidnn.backends.cpu.isa import AVX2, AVX512, ISAS, Isa
from minidnn.graph.operators import GELU, Add, ReLU, ScaleShift, Sigmoid
from tests.sampling import each_on_one, on

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

PAD = conv(pad=1)
SHAPES = [
    Case("whole-tiles", (1, 32, 8, 8), 32, (3, 3), PAD),
    Case("odd", (2, 48, 7, 7), 80, (3, 3), PAD, after=(ReLU(),)),
    Case("rest-2", (1, 16, 14, 18), 24, (3, 3), PAD, after=(Add(), ReLU())),
    Case("rest-3", (3, 21, 11, 15), 35, (3, 3), PAD, bias=False),
    Case("one-pixel", (2, 16, 1, 1), 16, (3, 3), PAD),
    Case("one-column", (2, 17, 9, 1), 16, (3, 3), PAD),
    Case("two-rows", (1, 40, 2, 23), 48, (3, 3), PAD),
    Case("no-padding", (2, 40, 6, 9), 32, (3, 3), after=(ReLU(),)),
    Case("much-padding", (1, 20, 5, 6), 32, (3, 3), conv(pad=5)),
    Case("asymmetric", (2, 17, 5, 6), 33, (3, 3), conv(pad=((0, 2), (1, 0)))),
    Case("deep", (2, 528, 7, 7), 40, (3, 3), PAD),
    Case("many-outputs", (1, 33, 7, 6), 257, (3, 3), PAD),
    Case("many-tiles", (1, 16, 37, 41), 16, (3, 3), PAD),
    Case("slices", (3, 32, 8, 7), 48, (3, 3), PAD, slack=48, after=(Add(),)),
    Case("planar-result", (2, 16, 8, 21), 5, (3, 3), PAD, layouts="bp", slack=2, after=(Add(),)),
    Case("vectors", (2, 16, 5, 9), 20, (3, 3), PAD, after=(ScaleShift(), ReLU())),
    Case("repeats", (2, 16, 5, 7), 33, (3, 3), PAD, after=(Add(),), repeats=(2, 1, 5, 7)),
    Case("long-epilogue", (1, 16, 9, 9), 33, (3, 3), PAD, after=(GELU(), Sigmoid())),
]
NAMES = [F2.name, F4.name]
SCHEDULES = ["local", "spread"]
KINDS = list(product(SHAPES, NAMES))
#: Those whose tiles are cut, in which one value is not finite.
SPREADING = list(product(SHAPES[2:4], NAMES))
#: The largest error of all cases, over the largest value; direct has 1.2e-6.
TOLERANCE = {F2.name: 1e-6, F4.name: 5e-6}
Ready = dict[tuple[str, str, str], tuple[Built, list[NativeFunction]]]


def name_of(kind: tuple[Case, str]) -> str:
    return f"{kind[0]}-{kind[1]}"


def only(monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    """Lets schemes of one schedule be chosen."""
    every = algorithm.candidates

    def some(*arguments):
        found = list(every(*arguments))
        return [s for s in found if s.local == (schedule == "local")]

    monkeypatch.setattr(algorithm, "candidates", some)
    # What was chosen among all is not remembered here, nor what is chosen here afterwards.
    monkeypatch.setattr(algorithm, "choose_winograd", algorithm.choose_winograd.__wrapped__)


@pytest.fixture(scope="module")
def _compiled() -> dict[str, Ready]:
    return {}


@pytest.fixture
def ready(isa: Isa, own_cache, _compiled: dict[str, Ready]) -> Ready:
    """What runs with an ISA in every schedule, compiled together."""
    if isa.name not in _compiled:
        keys, built = [], []
        kinds = [*on(KINDS, ISAS, isa.name, name_of), *on(SPREADING, ISAS, isa.name, name_of)]
        for schedule in SCHEDULES:
            with pytest.MonkeyPatch.context() as patch:
                only(patch, schedule)
                for case, name in dict.fromkeys(kinds):
                    keys.append((case.name, name, schedule))
                    built.append(build(replace(case, algorithm=name), isa))
        pairs = zip(built, compile_all(built, isa), strict=True)
        _compiled[isa.name] = dict(zip(keys, pairs, strict=True))
    return _compiled[isa.name]


@pytest.mark.parametrize("transform", [F2, F4], ids=lambda t: t.name)
def test_weights_and_points_give_a_convolution(transform) -> None:
    """By NumPy, with matrices that the printed transforms stand for."""
    n, m = transform.inputs, transform.outputs

    def matrix(print_lines, size: int) -> np.ndarray:
        code = Code()
        results = print_lines(code, lambda i: f"d{i}")
        text = str(code).replace("const float ", "").replace(";", "").replace("f,", ",")
        columns = []
        for i in range(size):
            names: dict[str, Any] = {f"d{k}": float(k == i) for k in range(size)}
            names["md_fma"] = lambda a, b, c: a * b + c
            for line in text.splitlines():
                target, _, value = line.strip().partition(" = ")
                names[target] = eval(_without_suffix(value), {}, names)
            columns.append([names[result] for result in results])
        return np.array(columns).T

    def print_inputs(code: Code, d) -> list[str]:
        parts = range(len(transform.input_parts))
        return [name for part in parts for name in transform.print_inputs(code, part, d)]

    def print_outputs(code: Code, d) -> list[str]:
        return transform.print_outputs(code, range(m), d)

    into, out = matrix(print_inputs, n), matrix(print_outputs, n)
    rng = np.random.default_rng(0)
    d, g = rng.standard_normal((n, n)), rng.standard_normal((3, 3))
    products = (transform.weights @ g @ transform.weights.T) * (into @ d @ into.T)
    wanted = [[(d[i : i + 3, j : j + 3] * g).sum() for j in range(m)] for i in range(m)]
    assert np.allclose(out @ products @ out.T, wanted, rtol=0, atol=1e-13)


def _without_suffix(text: str) -> str:
    return re.sub(r"(\d)f\b", r"\1", text)


@pytest.mark.parametrize("schedule", SCHEDULES)
@each_on_one(KINDS, ISAS, name_of)
def test_agrees_with_float64(case: tuple[Case, str], schedule: str, ready: Ready) -> None:
    shape, name = case
    built, kernels = ready[shape.name, name, schedule]
    assert built.kernel.algorithm == name
    assert len(built.kernel.stages) == (1 if schedule == "local" else 3)
    inputs = inputs_of(built)
    result = run(built, kernels, inputs)
    assert largest_error(result, reference(built, inputs)) < TOLERANCE[name]
    again = run(built, kernels, inputs, threads=2, guard=Guard.START, grain=1)
    assert np.array_equal(result.view("u4"), again.view("u4"))


@pytest.mark.sampled(3)
@each_on_one(KINDS, ISAS, name_of)
def test_schedules_give_the_same_bits(case: tuple[Case, str], ready: Ready) -> None:
    results = []
    shape, name = case
    for schedule in SCHEDULES:
        built, kernels = ready[shape.name, name, schedule]
        results.append(run(built, kernels, inputs_of(built)))
    assert np.array_equal(results[0].view("u4"), results[1].view("u4"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@each_on_one(SPREADING, ISAS, name_of)
def test_special_values_are_never_lost(case: tuple[Case, str], value: float, ready: Ready) -> None:
    """They may spread within the tiles that read them, and not beyond."""
    shape, name = case
    built, kernels = ready[shape.name, name, "local"]
    inputs = inputs_of(built)
    inputs[0][0, 3, 5, 6] = value
    with np.errstate(invalid="ignore"):
        wanted = reference(built, inputs)
    result = run(built, kernels, inputs)
    lost = ~np.isfinite(wanted) & np.isfinite(result)
    assert not lost.any()
    m = F2.outputs if name == F2.name else F4.outputs
    rows, columns = np.nonzero(~np.isfinite(result).all(axis=(0, 1)))
    reads = [(at - 1) // m for at in (5, 6)], [(at + 1) // m for at in (5, 6)]
    assert rows.min() // m >= reads[0][0] and rows.max() // m <= reads[1][0]
    assert columns.min() // m >= reads[0][1] and columns.max() // m <= reads[1][1]
    assert np.isfinite(result[1:]).all()


LAYERS = [
    Case("56", (16, 64, 56, 56), 64, (3, 3), PAD),
    Case("14", (1, 256, 14, 14), 256, (3, 3), PAD),
    Case("7", (1, 512, 7, 7), 512, (3, 3), PAD),
    Case("narrow", (1, 128, 28, 28), 32, (3, 3), PAD),
]


def chosen(case: Case, isa: Isa, accuracy: str = "normal") -> str:
    built = build(case, isa)
    batch = built.values[0].type.plane[0]
    source, *others, result = built.tensors
    problem = problem_of(built.parts, batch, source, tuple(others), result)
    return choose_algorithm(problem, bool(case.before), isa, accuracy).name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
def test_choices(isa: Isa) -> None:
    assert chosen(LAYERS[0], isa) == F4.name
    assert chosen(LAYERS[0], isa, "high") == F2.name
    for case in LAYERS:
        assert chosen(case, isa, "high") in ("direct, compensated", F2.name)
        assert chosen(case, isa, "direct") in ("direct", F2.name)
    assert chosen(replace(LAYERS[0], op=conv((2, 2), 1)), isa) == "direct"
    assert chosen(replace(LAYERS[0], kernel=(5, 5), op=conv(pad=2)), isa) == "direct"
    assert chosen(replace(LAYERS[0], op=conv(pad=1, groups=2)), isa) == "direct"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_fusion_and_slices_do_not_change_the_choice(case: Case, isa: Isa) -> None:
    fused = replace(case, after=(Add(), ReLU()), slack=32)
    assert chosen(fused, isa) == chosen(case, isa)


def test_reasons() -> None:
    four = next(a for a in algorithms.ALGORITHMS if a.name == F4.name)

    def reason(case: Case, isa: Isa = AVX512) -> str | None:
        built = build(case, isa)
        source, *others, result = built.tensors
        problem = problem_of(built.parts, case.shape[0], source, tuple(others), result)
        return four.why_not(problem, bool(case.before), isa)

    base = LAYERS[3]
    assert reason(base) is None
    assert reason(replace(base, kernel=(3, 1))) == "the kernel is 3x1, not 3x3"
    assert reason(replace(base, op=conv((2, 1)))) == ("stride (2, 1) and dilation (1, 1) are not 1")
    assert reason(replace(base, op=conv(groups=2))) == "it has 2 groups"
    assert reason(replace(base, before=(ReLU(),))) == "a prologue comes before it"
    assert reason(replace(base, layouts="pb")) == ("its input is not in blocks of 16 channels")


@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shapes_share_kernels(isa: Isa, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, schedule)
    base = Case("3x3", (1, 64, 56, 56), 128, (3, 3), PAD, after=(ReLU(),), algorithm=F4.name)
    sources = [s.source for s in build(base, isa).kernel.stages]
    for other in (replace(base, shape=(1, 64, 53, 55)), replace(base, slack=48)):
        assert [s.source for s in build(other, isa).kernel.stages] == sources
