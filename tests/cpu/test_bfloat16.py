"""Every case record in bfloat16 on the CPU engine, alone and fused.

What is tolerated is what the record says in units of bfloat16's epsilon, beside float64 over the
same numbers.  Special numbers are fed, too: NaN and infinities come out where they should.  CI
takes every eighth case, the full run all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.isa import AVX512, why_no_bfloat16
from minidnn.backends.cpu.machine import describe_machine, measured_rates
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from tests import cases
from tests.cases import Case
from tests.cases.record import Shape
from tests.cuda.precisions import EPSILON, assert_near, rounded

from .warming import warm

pytestmark = pytest.mark.skipif(
    why_no_bfloat16(AVX512) is not None, reason=str(why_no_bfloat16(AVX512))
)
CASES = cases.CASES
SINGLE = tuple(case for case in CASES if len(case.shapes[0]) == 1)
SOME = 8


def chosen(cases: Sequence[Case]) -> list[Any]:
    """The cases as parameters, of which CI takes some."""
    return [
        pytest.param(case, marks=() if case in CASES[::SOME] else pytest.mark.full, id=str(case))
        for case in cases
    ]


def shapes_of(case: Case) -> tuple[Shape, ...]:
    """The largest, of images if there are any."""
    return max(case.shapes, key=lambda shapes: (len(shapes[0]) == 4, math.prod(shapes[0])))


def among_others(case: Case) -> Graph:
    """The case between layers that fuse with it."""
    net = L.Sequential(L.LeakyReLU(0.5), case.network(), L.LeakyReLU(4.0), L.LeakyReLU(2.0))
    return to_graph(net, shapes_of(case)[0])


@cache
def warmed(full: bool) -> None:
    """Compiles the kernels of all of these tests, or of those that CI runs."""
    wanted = CASES if full else CASES[::SOME]
    graphs = [(case.graph(shapes_of(case)), "model") for case in wanted]
    single = [among_others(case) for case in wanted if case in SINGLE]
    graphs += [(graph, how) for graph in single for how in ("model", "layers")]
    warm(graphs, AVX512, precision="bfloat16")


@pytest.fixture(autouse=True)
def kernels(request: pytest.FixtureRequest) -> None:
    warmed(request.node.get_closest_marker("full") is not None)


def compiled(graph: Graph, strategy: str = "model") -> Executable:
    options: dict[str, Any] = {"isa": "avx512", "threads": 2, "guarded": True}
    return md.compile(graph, device="cpu", precision="bfloat16", strategy=strategy, **options)


@pytest.mark.parametrize("case", chosen(CASES))
def test_alone(case: Case) -> None:
    shapes = shapes_of(case)
    exe = compiled(case.graph(shapes))
    for special in (False, True) if case.special else (False,):
        inputs = rounded(case.inputs(shapes, "float32", special=special), "bfloat16")
        actual = np.asarray(exe(*inputs))
        what = f"{case}{' special' if special else ''}"
        assert_near(case, "bfloat16", EPSILON["bfloat16"], inputs, actual, what)


@pytest.mark.parametrize("case", chosen(SINGLE))
def test_fused_has_the_bits_of_unfused(case: Case) -> None:
    shapes = shapes_of(case)
    graph = among_others(case)
    inputs = rounded(case.inputs(shapes, "float32", special=case.special), "bfloat16")
    fused, single = compiled(graph)(*inputs), compiled(graph, "layers")(*inputs)
    np.testing.assert_array_equal(fused, single, str(case))


def test_a_report_compares_with_products_of_bfloat16() -> None:
    exe = compiled(to_graph(L.Sequential(L.Conv2d(32, 32, 3), L.ReLU()), (1, 32, 12, 12)))
    program: Any = exe.program
    text = exe.explain(measure=True)
    assert "in bfloat16" in text.splitlines()[0]
    assert "[bfloat16 dot product]" in text
    # Not all processors multiply pairs faster than they add products of float32.
    threads = min(program.threads, describe_machine().cores)
    peak = measured_rates().peak(program.isa.name, threads)
    assert program.bound_seconds(10**9, 0, True) == 10**9 / peak


def test_what_is_stored_is_rounded_to_the_nearest() -> None:
    """A sum that no factor changes is rounded once, on its way between two convolutions."""
    net = L.Sequential(L.Conv2d(16, 16, 1), L.ReLU(), L.Conv2d(16, 16, 1, bias=False))
    random = np.random.default_rng(0)
    kept = np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1)
    bias = random.standard_normal(16).astype(np.float32)
    net.load_state_dict({"0.weight": kept, "0.bias": bias, "2.weight": kept})
    x = rounded_to("bfloat16", random.standard_normal((1, 16, 9, 9)).astype(np.float32))
    sums = np.maximum(x + bias.reshape(16, 1, 1), 0)
    found = compiled(to_graph(net, x.shape))(x)
    assert not np.array_equal(sums, rounded_to("bfloat16", sums))
    np.testing.assert_array_equal(found, rounded_to("bfloat16", sums))
