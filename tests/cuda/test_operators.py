"""Operator cases lowered for a GPU and run by the emulator, all kernels compiled at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn import layers as L
from minidnn.backends.cuda.backend import CudaBackend
from minidnn.backends.cuda.constants import Data
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.target import CudaTarget
from minidnn.backends.cuda.task import InWorkspace, Pointer, Task
from minidnn.graph.index_map import Indexed
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Windowed
from minidnn.graph.operators import (
    ArgMax,
    Formula,
    Gather,
    GroupNorm,
    LayerNorm,
    MatMul,
    RandomDrop,
    Reduce,
    ScatterAdd,
    Softmax,
    Take,
)
from minidnn.graph.types import TensorType, numpy_dtype
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.arrays import to_bits
from minidnn.runtime.plan import Plan, make_plan
from tests import cases
from tests.cases import Case, check
from tests.cases.record import Shape
from tests.cuda.cards import H200

from .emulator.run import Emulated

KINDS = (
    *(Windowed, Indexed, Gather, ScatterAdd, RandomDrop, Reduce, ArgMax),
    *(GroupNorm, LayerNorm, MatMul, Softmax, Formula),
)


def kinds_of(case: Case) -> list[type]:
    return [type(node.op) for node in case.graph(case.shapes[0]).nodes]


def is_supported(case: Case) -> bool:
    backend = CudaBackend()
    nodes = case.graph(case.shapes[0]).nodes
    return not any(backend.unsupported(node, "float32") for node in nodes)


CHOSEN = tuple(
    case
    for case in (*cases.CASES, *cases.random.CASES, *cases.indexing.SUMS)
    if any(issubclass(kind, KINDS) for kind in kinds_of(case)) and is_supported(case)
)


class ProductTarget(CudaTarget):
    """One that computes products of two matrices as those of batches."""

    contracts_matrices = False


@cache
def lowered(case: Case, shapes: tuple[Shape, ...]) -> tuple[Plan, list[Task]]:
    context = Context(ProductTarget())
    plan = make_plan(optimize(case.graph(shapes), context), context)
    return plan, lower_plan(plan, H200, False)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    works = [t.work for c in CHOSEN for shapes in c.shapes for t in lowered(c, shapes)[1]]
    sources = [work.source for work in works if isinstance(work, Launch)]
    return Emulated(sources, tmp_path_factory.mktemp("operators"))


def run(
    plan: Plan,
    tasks: list[Task],
    kernels: Emulated,
    inputs: Sequence[np.ndarray],
    states: Mapping[Value, np.ndarray] | None = None,
) -> Any:
    """The outputs; ``states`` are flat arrays, which the run changes."""
    memory: dict[Value, np.ndarray] = dict(states or {})
    left: dict[Node, np.ndarray] = {}
    laid: dict[tuple[object, ...], np.ndarray] = {}

    def storage(value: Value) -> np.ndarray:
        root = plan.roots.get(value, value)
        if isinstance(root, Constant):
            return to_bits(root.data, root.dtype)
        if root not in memory:
            memory[root] = np.full(root.type.size + 8, -77).astype(numpy_dtype(root.dtype))
        return memory[root]

    def at(task: Task, pointer: Pointer) -> np.ndarray:
        if isinstance(pointer, Data):  # laid down once for a key, as a program does it
            return laid.setdefault(pointer.key, to_bits(pointer.make(), pointer.dtype))
        if isinstance(pointer, InWorkspace):
            return left.setdefault(task.node, np.full(task.workspace_bytes // 4, np.float32(-77)))
        assert isinstance(pointer, Value)
        return storage(pointer)

    for value, array in zip(plan.graph.inputs, inputs, strict=True):
        storage(value)[: array.size] = array.ravel()
    for task in tasks:
        assert isinstance(task.work, Launch), f"{task.node.name} is no kernel of ours"
        kernels.launch(task.work, [at(task, pointer) for pointer in task.pointers])
    return [storage(v)[: v.type.size].reshape(v.shape) for v in plan.graph.outputs]


def test_there_are_many() -> None:
    assert len(CHOSEN) > 20


@pytest.mark.sampled(4)
@pytest.mark.race
@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_operator(case: Case, kernels: Emulated) -> None:
    def compute(graph: Graph, inputs: Sequence[np.ndarray], dtype: str) -> Sequence[Any]:
        plan, tasks = lowered(case, tuple(x.shape for x in inputs))
        return run(plan, tasks, kernels, inputs)

    check(case, "float32", compute, by_torch=False)


def test_pictures_are_bytes(tmp_path: Path) -> None:
    """Every byte, moved and cast: the same numbers as NumPy's, but for a unit of rounding."""
    mean, std = np.array([0.5, 0.25, 0.4]), np.array([0.2, 0.3, -0.5])
    x = np.resize(np.arange(256, dtype=np.uint8), (2, 13, 11, 3))
    context = Context(CudaTarget())
    graph = to_graph(L.Preprocess(mean, std), x.shape)
    plan = make_plan(optimize(graph, context), context)
    tasks = lower_plan(plan, H200, False)
    sources = [task.work.source for task in tasks if isinstance(task.work, Launch)]
    (y,) = run(plan, tasks, Emulated(sources, tmp_path), [x])
    expected = ((x / 255 - mean) / std).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_kernels_of_one_text_read_their_own_tables(tmp_path: Path) -> None:
    """Even and odd columns are moved by one kernel, with other places."""
    x = Value(TensorType((3, 4)), "x")
    halves = [Node(Take((None, each)), [x], f"from{each[0]}") for each in ((0, 2), (1, 3))]
    graph = Graph([x], [half.output for half in halves], halves)
    plan = make_plan(graph, Context(CudaTarget()))
    tasks = lower_plan(plan, H200, False)
    works = [task.work for task in tasks if isinstance(task.work, Launch)]
    assert len(works) == 2 and len(set(works)) == 1
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    first, second = run(plan, tasks, Emulated([works[0].source], tmp_path), [array])
    np.testing.assert_array_equal(first, array[:, ::2])
    np.testing.assert_array_equal(second, array[:, 1::2])
