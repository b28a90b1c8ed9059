"""Contractions of bytes on CUDA: bits, plans, texts and refusals, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.backend import CudaBackend
from minidnn.backends.cuda.contraction.algorithms import algorithms_for, launches_of
from minidnn.backends.cuda.contraction.config import CudaAlgorithm, target
from minidnn.backends.cuda.contraction.graphs import (
    CONVOLUTION,
    graph_of,
    operands_of,
    why_no_engine,
    why_not_fused,
)
from minidnn.backends.cuda.contraction.kernel_registry import KERNELS
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tile_choice import DIVISIONS, TILES
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.machine import Machine
from minidnn.cudnn.graph.spec import Pointwise
from minidnn.fusion.region import FusedContraction, FusedSequence
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import argument, fma, linearize, rint
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType

from .cards import A100, H200, on_each
from .contractions import TILE, within
from .lowered import EmulatedProgram, Kernel, by_choice, graph_problems, planned_graph
from .whole_cases import whole_graph

QUADS = KERNELS["dp4a"]


def by_first(problem: ContractionProblem) -> Kernel:
    """By the first of the kernels that compute it, and the first of its choices."""
    kernel = algorithms_for(problem, H200)[0].kernel
    assert kernel is not None
    return by_choice(kernel, problem, kernel.choices(problem, H200)[0])


def by_tile(choice: int) -> Callable[[ContractionProblem], Kernel]:
    def chosen(problem: ContractionProblem) -> Kernel:
        if TILE.why_not(problem, H200) is not None:
            return by_first(problem)
        return by_choice(TILE, problem, within(problem, choice))

    return chosen


def by_quads(problem: ContractionProblem) -> Kernel:
    assert QUADS.why_not(problem, H200) is None
    return by_choice(QUADS, problem, 0)


WHOLE = [DIVISIONS.number(i, 1) for i in range(len(TILES))]
DIVIDED = [DIVISIONS.number(*one) for one in ((2, 2), (2, 8), (3, 4), (0, 2), (6, 4))]
KEPT = (DIVIDED[0],)
#: Kernels with seeds, of which four give each contraction four kinds of results.
RUNS: list[Any] = [
    pytest.param(0, by_first, id="first"),
    pytest.param(1, by_quads, id="quads", marks=pytest.mark.full),
    *(
        pytest.param(
            2 + i,
            by_tile(choice),
            id=DIVISIONS.shown(choice),
            marks=() if choice in KEPT else pytest.mark.full,
        )
        for i, choice in enumerate([*WHOLE, *DIVIDED])
    ),
]


@pytest.mark.race
@pytest.mark.parametrize(("seed", "kernel"), RUNS)
def test_sums_are_exact(
    seed: int, kernel: Callable[[ContractionProblem], Kernel], tmp_path: Path
) -> None:
    """To the last bit what operators define, whichever threads come first."""
    graph, inputs = whole_graph(seed)
    run = EmulatedProgram(graph, (), "float32", kernel, tmp_path)
    assert not any(CudaBackend().unsupported(node, "float32") for node in run.plan.graph.nodes)
    wanted = evaluate(graph, inputs)
    for backwards in (False, True):
        for found, exact in zip(run.all(inputs, backwards), wanted, strict=True):
            assert found.dtype == exact.dtype
            np.testing.assert_array_equal(found, exact)


def network() -> md.Layer:
    """Convolutions of all kinds, a residual, maxima, averages and a join."""
    x = md.Input((3, 13, 11))
    y = L.ReLU()(L.BatchNorm2d(16)(L.Conv2d(3, 16, 3, padding=1)(x)))
    z = L.ReLU()(L.Conv2d(16, 16, 3, padding=1)(y) + y)
    z = L.Concat()(L.Conv2d(16, 16, 3, padding=1, groups=16)(z), L.MaxPool2d(3, 1, 1)(z))
    z = L.Conv2d(32, 24, 3, stride=2, padding=1)(L.AvgPool2d(2)(z))
    return md.Model(x, L.Linear(24, 5)(L.Flatten()(L.AdaptiveAvgPool2d(1)(z))))


SHAPE = (2, 3, 13, 11)


def quantized(dtype: str) -> tuple[Graph, np.ndarray]:
    x = np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)
    net = network()
    md.calibrate(net, x)
    return md.quantize(net, x, dtype=dtype, device="reference"), x


@pytest.mark.parametrize("dtype", ["uint8", pytest.param("int8", marks=pytest.mark.full)])
def test_networks(dtype: str, tmp_path: Path) -> None:
    """What the graph gives that passes leave, to the last bit; that is what the CPU computes."""
    graph, x = quantized(dtype)
    run = EmulatedProgram(graph, SHAPE, "float32", by_first, tmp_path)
    (wanted,) = evaluate(run.plan.graph, [x])
    np.testing.assert_array_equal(run(x), wanted)
    np.testing.assert_array_equal(run(x, backwards=True), wanted)
    (near,) = evaluate(graph, [x])
    assert np.abs(wanted - near).max() <= 0.02 * np.abs(near).max()


def test_bytes_lie_between_layers() -> None:
    """Each layer reads bytes, and what follows it is computed on its sums."""
    graph, _ = quantized("uint8")
    plan = planned_graph(graph, "float32")
    kinds = [type(node.op) for node in plan.graph.nodes]
    assert kinds.count(FusedContraction) == 5 and FusedSequence in kinds
    for node in plan.graph.nodes:
        if isinstance(node.op, FusedContraction):
            assert node.inputs[0].dtype == "uint8"
    problems = graph_problems(graph, "float32")
    assert len(problems) == 5 and all(problem.is_integer for problem in problems)


def test_layers_that_differ_in_numbers_are_one_problem() -> None:
    """Scales and zeros stand before weights, not in texts."""
    x = np.random.default_rng(0).standard_normal((1, 32, 8, 8)).astype(np.float32)
    net = L.Sequential(*(L.Conv2d(32, 32, 3, padding=1) for _ in range(4)))
    problems = graph_problems(md.quantize(net, x, device="reference"), "float32")
    assert len(problems) == 4 and len(set(problems[:3])) == 1


def test_cudnn_computes_what_it_computes_exactly() -> None:
    """Layers of int8 without a residual, whose products it rounds as we do."""
    graph, _ = quantized("int8")
    told = {}
    for problem in graph_problems(graph, "float32"):
        reason = why_no_engine(problem)
        by = [algorithm for algorithm in algorithms_for(problem, H200) if algorithm.kernel is None]
        assert by == ([] if reason else [CudaAlgorithm(CONVOLUTION, len(problem.stages))])
        told[problem] = reason
    assert None in told.values()
    assert "its groups or channels are not aligned to vectors" in told.values()
    assert any(reason and "reads a residual" in reason for reason in told.values())
    fused = next(problem for problem, reason in told.items() if reason is None)
    algorithm = CudaAlgorithm(CONVOLUTION, len(fused.stages))
    spec = graph_of(fused, CONVOLUTION, algorithm.stages, target(fused, algorithm)).freeze()
    modes = [node.mode for node in spec.nodes if isinstance(node, Pointwise)]
    assert modes == ["mul", "add", "max", "mul"]
    assert {node.compute for node in spec.nodes[1:]} == {"float32"}
    assert spec.nodes[0].compute == "int32" and spec.tensors[spec.outputs[0]].dtype == "int8"
    assert len(operands_of(fused)) == len(spec.inputs) - 2
    other, _ = quantized("uint8")
    for problem in graph_problems(other, "float32"):
        assert why_no_engine(problem) in (
            "it makes uint8 of uint8",
            "it makes float32 of uint8",
        )


def test_what_cudnn_would_round_otherwise_is_not_fused() -> None:
    """A product that something is added to, and rounding in the middle."""
    x = argument(0)
    fused = [
        (x * 3.0, False, None),
        (rint(x * 3.0) + 0.0, True, None),
        (fma(x, argument(1), argument(2)) + 1.0, False, None),
        (x * 3.0 + 1.0, False, "it adds to a product, which cuDNN would not round"),
        (rint(x * 3.0) + 2.0, True, "it does not round where its result is int8"),
        (x * 3.0, True, "it does not round where its result is int8"),
        (rint(x) * 3.0, False, "cuDNN has no 'round'"),
    ]
    for body, rounds, reason in fused:
        assert why_not_fused(linearize(body), rounds) == reason


@on_each(A100, full=H200)
def test_texts_compile(machine: Machine) -> None:
    graph, _ = whole_graph(0)
    tasks = lower_plan(planned_graph(graph, "float32"), machine, False)
    problems = [task.work for task in tasks if isinstance(task.work, ContractionProblem)]
    taken = [next(p for p in problems if (TILE.why_not(p, machine) is None) == by) for by in (0, 1)]
    launches = [launch for problem in taken for launch in launches_of(problem, machine)]
    for one in compile_kernels([launch.source for launch in launches[:2]], machine.arch):
        assert one.resources.spill_bytes == 0


def test_halves_are_refused() -> None:
    graph, _ = quantized("uint8")
    for precision in ("float16", "bfloat16"):
        told = [CudaBackend().unsupported(node, precision) for node in graph.nodes]
        assert any(
            reason
            and f"is quantized, which is not computed in {precision}; valid are float32, tf32"
            in reason
            for reason in told
        )


def test_what_is_no_byte_is_refused() -> None:
    with tracing("wide") as trace:
        x = trace.input(TensorType((1, 16, 5, 5), "uint8"), "x")
        w = trace.input(TensorType((8, 16, 1, 1), "int8"), "w")
        wide = trace.input(TensorType((8, 16, 1, 1), "int32"), "wide")
        graph = trace.graph([apply(ops.Conv2d(), x, each) for each in (w, wide)])
    first, second = (CudaBackend().unsupported(node, "float32") for node in graph.nodes)
    assert first == "its weight or bias is computed; valid are constants"
    assert second == "it multiplies uint8 by int32; valid are int8 and uint8 by int8"
