"""Operator cases lowered for a GPU and run by the emulator, all kernels compiled at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from minidnn.backends.cuda.backend import CudaBackend
from minidnn.backends.cuda.bits import to_bits
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import Data, Task, lower_plan
from minidnn.backends.cuda.target import CudaTarget
from minidnn.graph.index_map import Indexed
from minidnn.graph.ir import Constant, Graph, Value
from minidnn.graph.operator import Windowed
from minidnn.graph.operators import ArgMax, Formula, Gather, LayerNorm, MatMul, Reduce, Softmax
from minidnn.graph.types import numpy_dtype
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import Plan, make_plan
from tests.cases import CASES, Case, check
from tests.cases.record import Shape

from .emulator.run import Emulated

KINDS = (Windowed, Indexed, Gather, Reduce, ArgMax, LayerNorm, MatMul, Softmax, Formula)


def kinds_of(case: Case) -> list[type]:
    return [type(node.op) for node in case.graph(case.shapes[0]).nodes]


def is_supported(case: Case) -> bool:
    backend = CudaBackend()
    nodes = case.graph(case.shapes[0]).nodes
    return not any(backend.unsupported(node, "float32") for node in nodes)


CHOSEN = tuple(
    case
    for case in CASES
    if any(issubclass(kind, KINDS) for kind in kinds_of(case)) and is_supported(case)
)


@cache
def lowered(case: Case, shapes: tuple[Shape, ...]) -> tuple[Plan, list[Task]]:
    context = Context(CudaTarget())
    plan = make_plan(optimize(case.graph(shapes), context), context)
    return plan, lower_plan(plan, "sm_90", False)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    works = [t.work for c in CHOSEN for shapes in c.shapes for t in lowered(c, shapes)[1]]
    sources = [work.source for work in works if isinstance(work, Launch)]
    return Emulated(sources, tmp_path_factory.mktemp("operators"))


def run(plan: Plan, tasks: list[Task], kernels: Emulated, inputs: Sequence[np.ndarray]) -> Any:
    memory: dict[Value, np.ndarray] = {}

    def storage(value: Value) -> np.ndarray:
        root = plan.roots.get(value, value)
        if isinstance(root, Constant):
            return to_bits(root.data, root.dtype)
        if root not in memory:
            memory[root] = np.full(root.type.size + 8, -77, numpy_dtype(root.dtype))
        return memory[root]

    for value, array in zip(plan.graph.inputs, inputs, strict=True):
        storage(value)[: array.size] = array.ravel()
    for task in tasks:
        assert isinstance(task.work, Launch), f"{task.node.name} is no kernel of ours"
        kernels.launch(
            task.work,
            [
                to_bits(p.make(), p.dtype) if isinstance(p, Data) else storage(p)  # type: ignore[arg-type]
                for p in task.pointers
            ],
        )
    return [storage(v)[: v.type.size].reshape(v.shape) for v in plan.graph.outputs]


def test_there_are_many() -> None:
    assert len(CHOSEN) > 20


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_operator(case: Case, kernels: Emulated) -> None:
    def compute(graph: Graph, inputs: Sequence[np.ndarray], dtype: str) -> Sequence[Any]:
        plan, tasks = lowered(case, tuple(x.shape for x in inputs))
        return run(plan, tasks, kernels, inputs)

    check(case, "float32", compute, by_torch=False)
