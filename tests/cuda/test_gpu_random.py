"""Random graphs on the CUDA engine against node-by-node evaluation."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minidnn as md
from minidnn.fusion.collapse import EVERYWHERE
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.operator import Contraction
from tests.fusion.graphs import graphs, inputs_for

pytestmark = pytest.mark.gpu


ARGUMENTS = (st.sampled_from(EVERYWHERE), st.booleans(), st.sampled_from(("float32", "tf32")))
SETTINGS = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.early
@settings(SETTINGS, max_examples=60, derandomize=True)
@given(graphs(most=16), *ARGUMENTS)
def test_random_graphs(graph: Graph, strategy: str, special: bool, precision: str) -> None:
    check(graph, strategy, special, precision)


@pytest.mark.full
@pytest.mark.parametrize("part", range(10))
def test_many_random_graphs(part: int) -> None:
    """Others every time."""
    settings(SETTINGS, max_examples=40, derandomize=False)(
        given(graphs(most=40), *ARGUMENTS)(check)
    )()


def check(graph: Graph, strategy: str, special: bool, precision: str) -> None:
    """Equal bits, except where a contraction sums or exp is another library's."""
    inputs = inputs_for(graph, 1, special)
    exe = md.compile(graph, device="cuda", strategy=strategy, precision=precision, tune="heuristic")
    results = exe(*inputs)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = evaluate(graph, inputs)
    results = results if isinstance(results, tuple) else (results,)
    kinds = [type(node.op) for node in graph.nodes]
    contracts = any(issubclass(kind, Contraction) for kind in kinds)
    for actual, exact in zip(results, expected, strict=True):
        if not contracts and ops.SiLU not in kinds:
            np.testing.assert_array_equal(actual, exact, str(graph))
        elif not contracts or not special:
            finite = np.isfinite(exact)
            size = np.abs(exact[finite]).max(initial=1.0)
            epsilon = 3e-3 if contracts and precision == "tf32" else 1e-5
            error = np.abs(actual[finite] - exact[finite]).max(initial=0.0)
            assert error <= epsilon * size, f"{error} of {size}\n{graph}"
