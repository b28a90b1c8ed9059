"""Weights that few tiles share: who asks for them often, for how many, and the results."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from minidnn.backends.cpu.contraction.choose import choose_scheme, schemes_for
from minidnn.backends.cpu.contraction.problem import problem_of
from minidnn.backends.cpu.contraction.scheme import OFTEN, Scheme
from minidnn.backends.cpu.execution.buffers import Guard
from minidnn.backends.cpu.isa import AVX2, AVX512, ISAS, Isa
from minidnn.graph.operators import Add, Linear, ReLU
from tests.sampling import every

from .cases import conv
from .harness import Built, Case, build, compile_all, inputs_of, reference, run

DEEP = [
    Case("deep-3x3-odd-depth", (1, 535, 7, 7), 40, (3, 3), conv(pad=1), after=(ReLU(),)),
    Case("deep-1x1", (1, 1072, 5, 3), 56, after=(Add(), ReLU())),
    Case("deep-1x1-one-pixel", (1, 837, 1, 1), 70),
    Case("deep-3x3-stride", (2, 272, 7, 5), 33, (3, 3), conv((2, 2), 1)),
    Case("deep-1x7", (1, 147, 3, 8), 48, (1, 7), conv(pad=((0, 0), (3, 3)))),
    Case("deep-linear", (3, 1541), 70, op=Linear()),
    Case("deep-f2", (1, 149, 7, 7), 40, (3, 3), conv(pad=1), algorithm="F(2x2, 3x3)"),
    Case("deep-f4", (1, 264, 9, 5), 33, (3, 3), conv(pad=1), algorithm="F(4x4, 3x3)"),
]
BOTH = pytest.mark.parametrize("isa", [AVX2, AVX512], ids=lambda isa: isa.name)


def scheme_of(built: Built, isa: Isa, threads: int = 2) -> Scheme:
    source, *others, result = built.tensors
    batch = built.values[0].type.plane[0]
    problem = problem_of(built.parts, batch, source, tuple(others), result)
    return choose_scheme(problem, False, isa, threads)


@BOTH
def test_who_asks_often(isa: Isa) -> None:
    def often(*args: object, **kwargs: object) -> bool:
        return scheme_of(build(Case("case", *args, **kwargs), isa), isa).prefetches_often  # type: ignore[arg-type]

    # AVX2's tiles are smaller: at 7x7 more of them share weights, and take twice as long.
    assert often((1, 512, 7, 7), 512, (3, 3), conv(pad=1)) == (isa is AVX512)
    assert often((1, 512, 2, 6), 512, (3, 3), conv(pad=1))
    assert often((1, 4096), 4096, op=Linear())
    assert not often((1, 64, 56, 56), 64, (3, 3), conv(pad=1)), "many tiles share its weights"
    assert not often((1, 3, 9, 9), 64, (3, 3), conv(pad=1), layouts="pb"), "its inputs are planes"
    assert not often((1, 512, 7, 7), 512, (3, 3), conv(pad=1, groups=512)), "it has few weights"


@BOTH
def test_the_tiles_of_a_block_ask_for_as_much_as_they_use(isa: Isa) -> None:
    seen = 0
    for case in DEEP[:6]:
        built = build(case, isa)
        for scheme in schemes_for(scheme_of(built, isa).problem, False, isa):
            used = scheme.unit * scheme.tile.vectors * isa.lanes // 16
            asked = scheme.lines_per_iteration * scheme.tiles
            assert used <= asked, f"{case}: {scheme}"
            if scheme.prefetches_often:
                seen += 1
                assert asked < used + scheme.tiles * scheme.unit // OFTEN, f"{case}: {scheme}"
    assert seen > 20


@BOTH
def test_asking_is_even(isa: Isa) -> None:
    """Between two turns of asking stand the products of OFTEN channels, not of a whole block."""
    built = build(DEEP[1], isa)
    (stage,) = built.kernel.stages
    scheme = scheme_of(built, isa, 1)
    asks = stage.source.text.split("prefetch_l1((void * uniform)ahead)")
    tile = scheme.tile
    per_channel = tile.rows * tile.columns * tile.vectors
    assert len(asks) > 1
    assert len(re.findall("md_fma", asks[1].split("xs +=")[0])) == OFTEN * per_channel


@pytest.mark.parametrize("isa", every(2, ISAS), indirect=True)
def test_deep_layers_agree_with_float64(isa: Isa) -> None:
    built = [build(case, isa) for case in DEEP]
    for b, kernels in zip(built, compile_all(built, isa), strict=True):
        inputs = inputs_of(b)
        wanted = reference(b, inputs)
        result = run(b, kernels, inputs)
        error = np.abs(result - wanted).max() / np.abs(wanted).max()
        assert error < (8e-6 if b.case.algorithm == "F(4x4, 3x3)" else 2e-6), b.case
        for threads, guard in ((2, Guard.START), (3, Guard.END), (4, Guard.START)):
            again = run(b, kernels, inputs, threads=threads, guard=guard, grain=1)
            assert np.array_equal(result.view("u4"), again.view("u4")), (b.case, threads)


@pytest.mark.parametrize("isa", every(2, list(ISAS)[::-1]), indirect=True)
def test_bits_do_not_depend_on_how_often_weights_are_asked_for(isa: Isa, monkeypatch) -> None:
    cases = [replace(case, name=case.name[:-1]) for case in DEEP]
    often = [build(case, isa) for case in cases]
    results = [run(b, k, inputs_of(b)) for b, k in zip(often, compile_all(often, isa), strict=True)]
    monkeypatch.setattr(Scheme, "prefetches_often", False)
    seldom = [build(case, isa) for case in cases]
    differ = 0
    for b, c, kernels, result in zip(often, seldom, compile_all(seldom, isa), results, strict=True):
        differ += [s.source for s in b.kernel.stages] != [s.source for s in c.kernel.stages]
        again = run(c, kernels, inputs_of(c))
        assert np.array_equal(result.view("u4"), again.view("u4")), b.case
    assert differ > len(cases) // 2


@BOTH
def test_one_row_reads_its_weights_without_asking_with_avx2(isa: Isa) -> None:
    for rows, asks in ((1, isa is AVX512), (4, True)):
        text = (
            build(Case("rows", (rows, 4096), 4096, op=Linear()), isa).kernel.stages[0].source.text
        )
        assert ("one_tile ? NULL" not in text) == asks, rows
