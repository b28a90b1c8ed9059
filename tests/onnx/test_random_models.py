"""Random models of every operator and opset: minidnn computes what ONNX Runtime does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.backends.cpu.compilers import toolchain
from minidnn.backends.cpu.isa import best_isa
from minidnn.frontends.onnx.convert import load_onnx
from minidnn.frontends.onnx.operators import CONVERTERS
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from tests.cpu.warming import warm

from .drawers import DRAWERS
from .random_models import RandomModel, random_model

pytestmark = pytest.mark.early

#: The largest difference, as a part of the value's largest number and of 1.
TOLERANCE = 2e-5
#: What ONNX Runtime does not know, or not yet in every opset.
NOT_THERE = {"SwiGLU"}


def models(first: int, count: int) -> Iterator[tuple[int, RandomModel, Graph]]:
    for seed in range(first, first + count):
        made = random_model(seed, DRAWERS)
        if made.nodes and made.outputs():
            graph = load_onnx(made.model())
            check(graph)
            yield seed, made, graph


def compare(seed: int, made: RandomModel, found: Sequence[np.ndarray]) -> None:
    for name, result in zip(made.outputs(), found, strict=True):
        expected = made.arrays[name]
        where = f"seed {seed}, opset {made.opset}, {name}"
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype), where
        if name in made.exact:
            assert np.array_equal(result, expected), where
        scale = max(1.0, float(np.abs(expected.astype(np.float64)).max()))
        apart = np.abs(result.astype(np.float64) - expected).max()
        assert apart <= TOLERANCE * scale, f"{where}: {apart} of {scale}"


def inputs(made: RandomModel, graph: Graph) -> list[np.ndarray]:
    return [made.arrays[value.name] for value in graph.inputs]


def run_reference(first: int, count: int) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for seed, made, graph in models(first, count):
        compare(seed, made, evaluate(graph, inputs(made, graph)))
        kinds.update(made.kinds)
    return kinds


def test_reference() -> None:
    assert len(run_reference(0, 400)) > 80


@pytest.mark.full
def test_many_on_the_reference() -> None:
    assert set(CONVERTERS) - set(run_reference(400, 10_000)) <= NOT_THERE


@pytest.fixture(scope="module")
def own_cache(warm_cache: Path) -> Iterator[None]:
    """The CPU engine with the session's cache."""
    try:
        ispc = toolchain.find_ispc().path
    except md.DeviceError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIDNN_ISPC", ispc)
        patch.setenv("MINIDNN_CACHE", str(warm_cache))
        if (reason := CpuBackend().unavailable()) is not None:
            pytest.skip(reason)
        yield


def run_engine(first: int, count: int, **options: Any) -> None:
    for seed, made, graph in models(first, count):
        results = md.compile(graph, **options)(*inputs(made, graph))
        found = list(results.values()) if isinstance(results, dict) else [results]
        compare(seed, made, [np.asarray(array) for array in found])


def run_cpu(first: int, count: int) -> None:
    warm([(graph, "model") for _, _, graph in models(first, count)], best_isa())
    run_engine(first, count, device="cpu", threads=2, isa=best_isa().name)


def test_cpu(own_cache: None) -> None:
    run_cpu(20_000, 60)


@pytest.mark.full
@pytest.mark.parametrize("first", range(20_100, 22_100, 200))
def test_many_on_the_cpu(first: int, own_cache: None) -> None:
    run_cpu(first, 200)


@pytest.mark.gpu
@pytest.mark.parametrize("first", range(30_000, 30_300, 25))
def test_cuda(first: int) -> None:
    run_engine(first, 25, device="cuda", tune="heuristic")
