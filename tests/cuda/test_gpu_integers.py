"""Quantized networks on a GPU: to the last bit what operators define."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import models
from minidnn.backends.cuda.contraction import tune
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.config import CudaAlgorithm
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tile_choice import DIVISIONS, TILES
from minidnn.backends.cuda.machine import Machine, machine_of
from minidnn.errors import UnsupportedError
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from tests.cuda.contractions import TILE, Forgetful, within
from tests.cuda.lowered import planned_graph
from tests.cuda.whole_cases import whole_graph

pytestmark = pytest.mark.gpu


def run(graph: Graph, inputs: list[np.ndarray], **options: Any) -> list[np.ndarray]:
    results = md.compile(graph, device="cuda", **options)(*inputs)
    return [np.asarray(one) for one in results]


def compare(found: list[np.ndarray], wanted: Any) -> None:
    for one, exact in zip(found, wanted, strict=True):
        assert one.dtype == exact.dtype
        np.testing.assert_array_equal(one, exact)


@pytest.mark.parametrize("seed", range(6))
def test_sums_are_exact(seed: int) -> None:
    graph, inputs = whole_graph(seed)
    compare(run(graph, inputs, tune="heuristic"), evaluate(graph, inputs))


DIVIDED = [DIVISIONS.number(*one) for one in ((2, 2), (2, 4), (2, 8), (3, 2), (5, 8), (6, 4))]


@pytest.mark.parametrize("choice", [*range(len(TILES)), *DIVIDED], ids=DIVISIONS.shown)
def test_every_tile(choice: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_of(0)
    if DIVISIONS[choice][1] > 1 and not machine.has_clusters:
        pytest.skip(f"{machine.arch} has no clusters")
    monkeypatch.setattr(tune, "_store", Forgetful())
    monkeypatch.setattr(TILE, "choices", lambda p, machine: [within(p, choice)])
    graph, inputs = whole_graph(10 + choice)
    compare(run(graph, inputs, tune="heuristic"), evaluate(graph, inputs))


def every_form(
    seen: set[CudaAlgorithm], problem: ContractionProblem, machine: Machine
) -> list[CudaAlgorithm]:
    found = algorithms_for(problem, machine)
    seen.update(found)
    return found


@pytest.mark.parametrize("tuned", ["quick", "exhaustive"])
def test_whatever_wins(tuned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and cuDNN's engines race, and the bits are the same."""
    monkeypatch.setattr(tune, "_store", Forgetful())
    seen: set[CudaAlgorithm] = set()
    monkeypatch.setattr(tune, "algorithms_for", partial(every_form, seen))
    graph, inputs = whole_graph(20)
    compare(run(graph, inputs, tune=tuned), evaluate(graph, inputs))
    assert {algorithm.core for algorithm in seen} >= {"tile", "dp4a"}


@lru_cache(1)
def quantized(name: str, dtype: str) -> tuple[Graph, np.ndarray]:
    side = {"alexnet": 96, "inception_v3": 107}.get(name, 64)
    x = np.random.default_rng(0).standard_normal((2, 3, side, side)).astype(np.float32)
    net = models.get_model(name)
    md.calibrate(net, x)
    return md.quantize(net, x, ranges="minmax", dtype=dtype, device="cuda", shape=x.shape), x


@pytest.mark.early
@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *(("uint8", "squeezenet1_1"), ("uint8", "resnet50"), ("int8", "alexnet")),
        *(
            pytest.param(dtype, name, marks=pytest.mark.full)
            for dtype, name in (
                *(("uint8", "alexnet"), ("uint8", "densenet121"), ("uint8", "inception_v3")),
                *(("int8", "densenet121"), ("int8", "inception_v3"), ("int8", "resnet50")),
                ("int8", "squeezenet1_1"),
            )
        ),
    ],
)
def test_networks(name: str, dtype: str) -> None:
    """What the graph gives that passes leave, which is what the CPU computes, too."""
    graph, x = quantized(name, dtype)
    (wanted,) = evaluate(planned_graph(graph, "float32").graph, [x])
    # Whatever is chosen gives these bits; to measure choices, workers wait for each other.
    compare([np.asarray(md.compile(graph, device="cuda", tune="heuristic")(x))], [wanted])


def test_precisions() -> None:
    graph, x = quantized("squeezenet1_1", "uint8")
    compare(
        [np.asarray(md.compile(graph, device="cuda", precision="tf32")(x))],
        [np.asarray(md.compile(graph, device="cuda")(x))],
    )
    wrong: Callable[[], Any] = partial(md.compile, graph, device="cuda", precision="float16")
    with pytest.raises(UnsupportedError, match="is quantized, which is not computed in float16"):
        wrong()


def test_files(tmp_path: Any) -> None:
    graph, x = quantized("squeezenet1_1", "uint8")
    exe = md.compile(graph, device="cuda")
    exe.save(tmp_path / "net.mdx")
    np.testing.assert_array_equal(md.load(tmp_path / "net.mdx", device="cuda")(x), exe(x))
