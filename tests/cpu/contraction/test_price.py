"""Predicted times follow from arithmetic and bytes, and get better with better machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minidnn.backends.cpu.contraction.choose import (
    Speed,
    choose_scheme,
    memory_bytes,
    predict_seconds,
)
from minidnn.backends.cpu.contraction.problem import problem_of
from minidnn.backends.cpu.contraction.scheme import Scheme
from minidnn.backends.cpu.isa import AVX2, AVX512, Isa
from minidnn.graph.operators import Linear

from .cases import conv
from .harness import Case, build

MACHINE = Speed(threads=2, flops=500e9, bandwidth=45e9, cache=32 << 20)


def scheme_of(case: Case, isa: Isa = AVX512, threads: int = 2) -> Scheme:
    built = build(case, isa, threads)
    batch = built.values[0].type.plane[0]
    source, *others, result = built.tensors
    problem = problem_of(built.parts, batch, source, tuple(others), result)
    return choose_scheme(problem, bool(case.before), isa, threads)


def seconds(case: Case, machine: Speed = MACHINE, isa: Isa = AVX512) -> float:
    return predict_seconds(scheme_of(case, isa, machine.threads), machine)


LAYERS = [
    Case("3x3", (16, 64, 56, 56), 64, (3, 3), conv(pad=1)),
    Case("3x3-deep", (16, 512, 7, 7), 512, (3, 3), conv(pad=1)),
    Case("1x1", (16, 256, 14, 14), 1024),
    Case("3x3-stride", (16, 128, 56, 56), 128, (3, 3), conv((2, 2), 1)),
]


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_regular_layers_take_little_more_than_their_arithmetic(case: Case) -> None:
    floor = scheme_of(case).problem.operations / MACHINE.flops
    assert floor < seconds(case) < 1.15 * floor
    slow = replace(MACHINE, flops=MACHINE.flops / 2)
    assert seconds(case, slow) == pytest.approx(2 * seconds(case), rel=0.03)
    halved = replace(MACHINE, flops=MACHINE.flops / 2)
    assert floor * 2 < seconds(case, halved, AVX2) < 1.25 * floor * 2


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_more_threads_take_less_time(case: Case) -> None:
    eight = replace(MACHINE, threads=8, flops=4 * MACHINE.flops, bandwidth=4 * MACHINE.bandwidth)
    assert 3.3 < seconds(case) / seconds(case, eight) < 4.2


def test_one_row_through_a_linear_layer_is_a_read_of_its_weights() -> None:
    case = Case("linear", (1, 4096), 4096, op=Linear())
    read = 4 * 4096 * 4096 / MACHINE.bandwidth
    assert read < seconds(case) < 1.15 * read


def test_values_in_the_last_cache_are_free() -> None:
    case = Case("1x1", (16, 64, 56, 56), 256)
    scheme = scheme_of(case)
    weights, result, inputs = 4 * 64 * 256, 4 * 16 * 256 * 56 * 56, 4 * 16 * 64 * 56 * 56
    assert memory_bytes(scheme, 1 << 30) == weights
    assert memory_bytes(scheme, 32 << 20) == weights + result  # streamed: nothing is read first
    assert memory_bytes(scheme, 0) == weights + result + inputs
