"""Random graphs on the CPU engine against node-by-node evaluation, on both ISAs, guarded.

All graphs are drawn first and their kernels compiled together: compiling one graph after the
other would take most of an hour.  The price is that hypothesis does not shrink what fails; the
message names the graph.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import minidnn as md
from minidnn.backends.cpu.isa import ISAS, Isa
from minidnn.fusion.collapse import EVERYWHERE
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.operator import Contraction
from tests.fusion.graphs import graphs, inputs_for
from tests.sampling import IS_FULL

from .warming import warm

pytestmark = pytest.mark.early


@dataclass(frozen=True)
class Drawn:
    graph: Graph
    strategy: str
    special: bool

    def contains(self, *kinds: type) -> bool:
        return any(isinstance(node.op, kinds) for node in self.graph.nodes)


def draw(count: int, most: int, derandomize: bool = True) -> list[Drawn]:
    """That many examples, of all strategies in turn; the same ones every time unless not
    derandomized."""
    drawn: list[Drawn] = []

    @settings(
        max_examples=count,
        derandomize=derandomize,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(graphs(most=most), st.booleans())
    def collect(graph: Graph, special: bool) -> None:
        drawn.append(Drawn(graph, EVERYWHERE[len(drawn) % len(EVERYWHERE)], special))

    collect()
    return drawn


def check(example: Drawn, seed: int, isa: Isa) -> None:
    """Equal bits, except where a contraction sums or exp is another library's."""
    inputs = inputs_for(example.graph, seed, example.special)
    exe = md.compile(
        example.graph,
        device="cpu",
        strategy=example.strategy,
        isa=isa.name,
        threads=2,
        guarded=True,
    )
    exe(*inputs)  # with pages behind all buffers, and then with pages before them
    results = exe(*inputs)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = evaluate(example.graph, inputs)
        wide = evaluate(example.graph, inputs, "float64")
    results = results if isinstance(results, tuple) else (results,)
    for actual, exact, precise, value in zip(
        results, expected, wide, example.graph.outputs, strict=True
    ):
        label = f"{value!r}, strategy {example.strategy!r}, {isa.name}, inputs {seed} of\n"
        label += str(example.graph)
        if not example.contains(Contraction, ops.SiLU):
            np.testing.assert_array_equal(actual, exact, label)
        elif not example.contains(Contraction) or not example.special:
            close(actual, exact, precise, label)


def close(actual: np.ndarray, expected: np.ndarray, precise: np.ndarray, label: str) -> None:
    """As near to the result in float64 as 16 times NumPy's own, or some roundings of the
    largest number; not finite where NumPy is not."""
    with np.errstate(all="ignore"):
        size = np.abs(precise[np.isfinite(precise)]).max(initial=0.0)
        own = np.abs(expected - precise)
        allowed = 16 * own[np.isfinite(own)].max(initial=0.0) + 32 * np.finfo(np.float32).eps * size
    np.testing.assert_allclose(actual, expected, rtol=0, atol=allowed, err_msg=label)


@pytest.mark.sampled(3)
def test_random_graphs(isa: Isa) -> None:
    """In CI each instruction set has half of the graphs, which have all strategies together."""
    drawn = draw(32, most=16)
    exact = [e for e in drawn if not e.contains(Contraction, ops.SiLU)]
    assert len({e.strategy for e in exact}) == len(EVERYWHERE)
    if not IS_FULL:
        drawn = drawn[:16] if isa.name == next(iter(ISAS)) else drawn[16:]
    warm(((example.graph, example.strategy) for example in drawn), isa)
    for seed, example in enumerate(drawn):
        check(example, seed, isa)


@pytest.mark.full
@pytest.mark.parametrize("part", range(10))
def test_many_random_graphs(isa: Isa, part: int) -> None:
    drawn = draw(40, most=40, derandomize=False)
    warm(((example.graph, example.strategy) for example in drawn), isa)
    for seed, example in enumerate(drawn):
        check(example, seed, isa)
