"""What must not change a bit of a result, and values that must not be lost or invented."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from minidnn.backends.cpu.compilers.library import NativeFunction
from minidnn.backends.cpu.contraction import scheme
from minidnn.backends.cpu.isa import AVX2, AVX512, Isa
from minidnn.graph.operators import Add, Linear, ReLU, ScaleShift

from .cases import CASES, conv
from .harness import Built, Case, build, compile_all, inputs_of, reference, run

SPECIAL = [
    Case("special-1x1", (1, 37, 6, 5), 21, after=(ReLU(),)),
    Case("special-3x3", (1, 37, 6, 5), 21, (3, 3), conv(pad=1), after=(Add(), ReLU())),
    Case("special-prologue", (1, 37, 6, 5), 21, (3, 3), conv(pad=1), before=(ScaleShift(), ReLU())),
    Case("special-stem", (1, 3, 13, 11), 17, (7, 7), conv((2, 2), 3), layouts="pb"),
    Case("special-depthwise", (1, 21, 6, 5), 21, (3, 3), conv(pad=1, groups=21)),
    Case("special-groups", (1, 64, 6, 5), 64, (3, 3), conv(pad=1, groups=2)),
    Case("special-groups-of-4", (1, 36, 6, 5), 36, (3, 3), conv(pad=1, groups=9)),
    Case("special-linear", (2, 37), 21, op=Linear(), after=(ReLU(),)),
    Case("special-deep", (1, 2100, 3, 5), 21),
]
BATCHES = [
    Case("batch-1x1", (5, 48, 9, 7), 80, after=(ReLU(),)),
    Case("batch-3x3", (5, 132, 9, 7), 80, (3, 3), conv(pad=1), before=(ScaleShift(),)),
    Case("batch-groups", (5, 104, 9, 7), 104, (3, 3), conv((2, 2), 1, groups=13)),
    Case("batch-linear", (19, 2100), 80, op=Linear()),
]


def outcomes(cases: list[Case], isa: Isa, threads: int = 1) -> list[tuple[Built, np.ndarray]]:
    built = [build(case, isa, threads) for case in cases]
    kernels = compile_all(built, isa)
    return [(b, run(b, k, inputs_of(b), threads)) for b, k in zip(built, kernels, strict=True)]


@pytest.mark.together(2)
def test_bits_do_not_depend_on_the_threads_it_is_printed_for(isa) -> None:
    names = ("1x1-very-deep", "3x3-many-blocks", "3x3-14", "stem-7x7", "linear-deep", "1x1-long")
    cases = [case for case in CASES if case.name in names]
    assert len(cases) == len(names)
    one, many = outcomes(cases, isa), outcomes(cases, isa, 16)
    pairs = zip(one, many, strict=True)
    tasks = [(a.kernel.stages[0].tasks, b.kernel.stages[0].tasks) for (a, _), (b, _) in pairs]
    assert any(a != b for a, b in tasks), "no case is cut differently: this tests nothing"
    for (built, a), (_, b) in zip(one, many, strict=True):
        assert np.array_equal(a.view("u4"), b.view("u4")), built.case.name


@pytest.mark.together
def test_an_image_gives_the_same_bits_in_a_batch_and_alone(isa) -> None:
    alone = [replace(case, shape=(1, *case.shape[1:])) for case in BATCHES]
    built = [build(case, isa) for case in [*BATCHES, *alone]]
    kernels = compile_all(built, isa)
    for i, case in enumerate(BATCHES):
        inputs = inputs_of(built[i])
        whole = run(built[i], kernels[i], inputs)
        for image in (0, case.shape[0] - 1):
            j = i + len(BATCHES)
            part = run(built[j], kernels[j], [x[image : image + 1] for x in inputs])
            assert np.array_equal(part.view("u4"), whole[image : image + 1].view("u4")), case.name


@pytest.mark.together(2)
def test_streamed_results_are_the_same(isa, monkeypatch) -> None:
    names = ("1x1-residual", "3x3-14", "groups-aligned", "1x1-tails", "linear", "depthwise")
    cases = [case for case in CASES if case.name in names]
    near = outcomes(cases, isa)
    monkeypatch.setattr(scheme, "STREAMED_BYTES", 0)
    far = outcomes(cases, isa)
    for (a, x), (b, y) in zip(near, far, strict=True):
        assert ("streaming_store" in b.kernel.stages[0].source.text) == (b.case.name != "linear")
        assert "streaming_store" not in a.kernel.stages[0].source.text
        assert np.array_equal(x.view("u4"), y.view("u4"))


@pytest.fixture(scope="module")
def _special() -> dict[str, list[tuple[Built, list[NativeFunction]]]]:
    return {}


@pytest.fixture
def special(isa, own_cache, _special):
    if isa.name not in _special:
        built = [build(case, isa) for case in SPECIAL]
        _special[isa.name] = list(zip(built, compile_all(built, isa), strict=True))
    return _special[isa.name]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", range(len(SPECIAL)), ids=[case.name for case in SPECIAL])
@pytest.mark.together
def test_special_values_reach_exactly_what_reads_them(special, index: int, value: float) -> None:
    built, kernels = special[index]
    inputs = inputs_of(built)
    flat = inputs[0].reshape(-1)
    flat[[0, len(flat) // 2, len(flat) - 1]] = value
    with np.errstate(invalid="ignore"):
        wanted = reference(built, inputs)
    result = run(built, kernels, inputs)
    assert not np.isfinite(wanted).all() or built.case.after
    assert np.array_equal(np.isnan(result), np.isnan(wanted))
    infinite = np.isinf(wanted)
    assert np.array_equal(result[infinite], wanted[infinite])
    assert np.array_equal(np.isinf(result), infinite)


def test_source_is_the_same_in_every_process() -> None:
    from tests.cpu.conftest import run_python

    code = """
        from tests.cpu.contraction.cases import CASES
        from tests.cpu.contraction.harness import build
        from minidnn.backends.cpu.isa import AVX2
        for case in CASES[::5]:
            print(build(case, AVX2).kernel.stages[0].source.name)
    """
    runs = [run_python(code, PYTHONHASHSEED=seed).communicate()[0] for seed in ("1", "2")]
    assert runs[0] == runs[1]
    names = [build(case, AVX2).kernel.stages[0].source.name for case in CASES[::5]]
    assert runs[0].split() == names


def test_equal_contractions_share_a_kernel() -> None:
    a, b = (build(case, AVX2).kernel.stages[0].source for case in (CASES[0], CASES[0]))
    assert a == b
    other = build(replace(CASES[0], after=(ReLU(),)), AVX2).kernel.stages[0].source
    assert other.name != a.name


@pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)
def test_shapes_share_a_kernel(isa: Isa) -> None:
    """What differs only in sizes and strides is compiled once."""
    base = Case("3x3", (2, 64, 28, 28), 128, (3, 3), conv(pad=1), after=(ReLU(),))
    others = (
        replace(base, shape=(5, 48, 14, 28)),
        replace(base, shape=(1, 96, 56, 28), outputs=32),
        replace(base, kernel=(5, 3), op=conv(pad=((2, 2), (1, 1)))),
        replace(base, op=conv(pad=((3, 1), (2, 2)), dilation=(2, 2))),
        replace(base, slack=64),
    )
    source = build(base, isa).kernel.stages[0].source
    for other in others:
        assert build(other, isa).kernel.stages[0].source == source, other
