"""Which operations a device runs is asked of graphs as they stand, before they are optimized."""

from __future__ import annotations

import pytest

from minidnn.backends.backend import Backend
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.backends.cuda import backend as cuda
from minidnn.backends.cuda.backend import CudaBackend
from minidnn.compiler import _reasons
from minidnn.errors import UnsupportedError
from minidnn.gradients.reverse import pullback, reached_values
from minidnn.graph.ir import Graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from tests.cases import CASES, Case
from tests.cuda.cards import H200


def graphs_of(case: Case) -> list[Graph]:
    graph = case.graph(case.shapes[0])
    floating = [value for value in graph.inputs if value in reached_values(graph)]
    try:
        return [graph, pullback(graph, floating)] if floating else [graph]
    except UnsupportedError:  # it has no gradient
        return [graph]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backend", [CpuBackend(), CudaBackend()], ids=["cpu", "cuda"])
def test_what_runs_as_it_stands_runs_optimized(
    case: Case, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "machine_of", lambda index: H200)
    for graph in graphs_of(case):
        context = Context(backend.target("float32", {}))
        if not _reasons(backend, graph, "float32"):
            assert not _reasons(backend, optimize(graph, context), "float32"), graph
