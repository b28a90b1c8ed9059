"""Every case record through the whole compiler, run by the reference backend.

Alone, and between element-wise layers, so that what can fuse does.  Fusion changes no result:
the executable gives the bits of the graph evaluated node by node, NaN and infinities included.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.executable import Executable
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from tests.cases import CASES, Case, check
from tests.sampling import every

ONE_INPUT = tuple(case for case in CASES if len(case.shapes[0]) == 1)
Shapes = tuple[tuple[int, ...], ...]
#: Passes fold what stands around these into their weights.
FOLDED = ("conv2d", "linear", "batch_norm")


@lru_cache(maxsize=1)
def executable(graph: Graph, dtype: str) -> Executable:
    """Compiled once for all that a graph is run on, one graph after the other."""
    return md.compile(graph, device="reference", precision=dtype)


def compiled(graph: Graph, inputs: Sequence[np.ndarray], dtype: str) -> Sequence[np.ndarray]:
    result = executable(graph, dtype)(*inputs)
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_alone(case: Case) -> None:
    check(case, "float32", compiled, by_torch=False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "case",
    every(2, [case for case in ONE_INPUT if not case.name.startswith(FOLDED)]),
    ids=str,
)
def test_among_others(case: Case) -> None:
    graphs: dict[Shapes, Graph] = {}
    for what, shapes, inputs in case.variants("float32"):
        if shapes not in graphs:
            net = L.Sequential(L.LeakyReLU(-0.5), case.network(), L.Hardswish(), L.ELU())
            graphs[shapes] = to_graph(net, shapes[0])
        graph = graphs[shapes]
        (actual,) = compiled(graph, inputs, "float32")
        np.testing.assert_array_equal(actual, evaluate(graph, inputs)[0], f"{case} {what}")
