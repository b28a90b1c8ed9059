"""Every case record on the CPU engine: both ISAs, alone and fused, between guard pages.

What is tolerated is what the record says, nothing more.  All kernels of an ISA are compiled
before the first of its cases runs.  In CI each case runs alone in its largest shape and
every third, on one of the ISAs, and every fifth case fused on the best one, in its largest shape.
All run in all ways in the full run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.isa import ISAS, Isa, best_isa, usable_isas
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from tests import cases
from tests.cases import Case, assert_close, check
from tests.cases.record import Shape
from tests.sampling import each_on_one, on, only, some, turn

from .warming import warm

CASES = (*cases.CASES, *cases.random.CASES, *cases.indexing.SUMS)
SINGLE = tuple(case for case in CASES if len(case.shapes[0]) == 1)
#: Those that this processor executes, or all, whose tests then say that it executes none.
USABLE = [isa.name for isa in usable_isas()] or list(ISAS)


def chosen(case: Case, all_shapes: bool) -> tuple[tuple[Shape, ...], ...]:
    """The shapes that a case runs with: all, or the largest, of images if there are any."""
    return case.shapes if all_shapes else (largest(case),)


def largest(case: Case) -> tuple[Shape, ...]:
    return max(case.shapes, key=lambda shapes: (len(shapes[0]) == 4, math.prod(shapes[0])))


def shown(case: Case) -> Case:
    """With the shapes in which it runs alone."""
    return replace(case, shapes=tuple(dict.fromkeys((*some(case.shapes, 3), largest(case)))))


@cache
def alone(case: Case, shapes: tuple[Shape, ...]) -> Graph:
    return case.graph(shapes)


@cache
def among_others(case: Case, shapes: tuple[Shape, ...]) -> Graph:
    """The case between layers that fuse with it; those behind are exact, they double."""
    net = L.Sequential(L.LeakyReLU(0.5), case.network(), L.LeakyReLU(4.0), L.LeakyReLU(2.0))
    return to_graph(net, shapes[0])


@cache
def warm_alone(isa_name: str) -> None:
    graphs = [
        (alone(case, shapes), "model")
        for case in on(CASES, USABLE, isa_name)
        for shapes in shown(case).shapes
    ]
    warm(graphs, ISAS[isa_name])


@cache
def warm_fused(isa_name: str, all_shapes: bool) -> None:
    graphs = [
        (among_others(case, shapes), strategy)
        for case in (SINGLE if all_shapes else turn(some(SINGLE, 5), 4))
        for shapes in chosen(case, all_shapes)
        for strategy in ("model", "layers")
    ]
    warm(graphs, ISAS[isa_name])


@pytest.fixture(autouse=True)
def kernels(own_cache: None) -> None:
    """Kernels of these tests are kept apart from those of others."""


@cache
def compiled(graph: Graph, isa_name: str, strategy: str = "model") -> Executable:
    return md.compile(graph, device="cpu", strategy=strategy, isa=isa_name, threads=2, guarded=True)


@each_on_one(CASES, USABLE)
def test_alone(case: Case, isa: Isa) -> None:
    warm_alone(isa.name)

    def run(graph: Graph, inputs: Sequence[np.ndarray], dtype: str) -> Sequence[np.ndarray]:
        result = compiled(alone(case, tuple(x.shape for x in inputs)), isa.name)(*inputs)
        return result if isinstance(result, tuple) else (result,)

    check(shown(case), "float32", run, by_torch=False)


@pytest.mark.parametrize("case", only(turn(some(SINGLE, 5), 4), SINGLE), ids=str)
def test_among_others(case: Case) -> None:
    """On the best ISA, and on one shape each: compiling the rest takes minutes."""
    check_among_others(case, best_isa(), all_shapes=False)


@pytest.mark.full
@pytest.mark.parametrize("case", SINGLE, ids=str)
def test_among_others_in_all_shapes(case: Case, isa: Isa) -> None:
    check_among_others(case, isa, all_shapes=True)


def check_among_others(case: Case, isa: Isa, all_shapes: bool) -> None:
    """As accurate as alone, and with the bits of the same layers without fusion of stacks."""
    warm_fused(isa.name, all_shapes)
    for what, shapes, inputs in replace(case, shapes=chosen(case, all_shapes)).variants("float32"):
        graph = among_others(case, shapes)
        fused = compiled(graph, isa.name)(*inputs)
        single = compiled(graph, isa.name, "layers")(*inputs)
        np.testing.assert_array_equal(fused, single, f"{case} {what}: fused and not")
        given = tuple(leaky(x, np.float32(0.5)) for x in inputs)
        expected = leaky(leaky(case.expected(given, "float32"), 4.0), 2.0)
        ulps = 8 * case.ulps * case.magnitude(given, "float32")
        assert_close("float32", fused, ulps, expected, f"{case} {what}")


def leaky(x: np.ndarray, slope: float | np.float32) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.where(x >= 0, x, x * slope)
