"""A whole training step in the memory that a GPU's program has: its kernels by the emulator, its
contractions by NumPy.  Layouts, places and storages are those of a run, so that a value that lies
otherwise than its readers think, or is written over too early, is seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.block import lay_out
from minidnn.backends.cuda.constants import Data
from minidnn.backends.cuda.contraction.problem import Address
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.rank_sums import RankSum
from minidnn.backends.cuda.task import InWorkspace, Pointer, Task
from minidnn.fusion.region import FusedSequence, FusedSums
from minidnn.gradients.forward_backward import ForwardBackward
from minidnn.gradients.reverse import pullback
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operators import Concat, SumOverRanks, ranks
from minidnn.graph.trace import apply
from minidnn.layers.build import to_graph
from minidnn.runtime.arrays import from_bits, to_bits
from minidnn.runtime.operand import Operand
from minidnn.runtime.plan import Plan
from minidnn.runtime.slots import Slots
from minidnn.training.step import Objective, Ranks, step_graph
from tests.cuda.arrays import STORED
from tests.cuda.cards import H200
from tests.passes.build import graph_of, max_pool, relu

from .emulator.run import Emulated
from .lowered import planned_graph

SHAPE = (4, 3, 16, 16)
MARGIN = 4096
"""Bytes behind what a kernel may read."""


class Network(L.Layer):
    """Rows that become planes on the way back, both poolings, a sum, a normalization, biases."""

    def __init__(self) -> None:
        self.first = L.Conv2d(3, 16, 3, padding=1)
        self.norm, self.relu = L.BatchNorm2d(16), L.ReLU()
        self.most, self.mean = L.MaxPool2d(3, 2, 1), L.AvgPool2d(2)
        self.conv = L.Conv2d(16, 16, 3, padding=1)
        self.head = L.Sequential(L.Flatten(), L.Linear(16 * 16, 5))

    def forward(self, x: Any) -> Any:
        y = self.most(self.relu(self.norm(self.first(x))))
        return self.head(self.mean(self.relu(self.conv(y) + y)))


class Memory:
    """What the slots of a plan are, and the values in them.

    ends: the numbers of inputs that lie with the values, where all other ends lie elsewhere; by
        default all of them.
    """

    def __init__(self, plan: Plan, tasks: list[Task], ends: Collection[int] | None = None) -> None:
        self.plan = plan
        wanted: dict[Node, int] = {}
        for task in tasks:
            wanted[task.node] = max(wanted.get(task.node, 0), task.workspace_bytes)
        self.block = block = lay_out(plan, wanted, ends)
        lies = {value: Operand(0, offset) for value, offset in plan.arena.offsets.items()}
        self.slots = slots = Slots(plan, lies, 1)
        own = np.full(block.own_bytes + MARGIN, 0xFF, np.uint8)
        self.memory = {0: own}
        places = (*block.inputs, *block.outputs)
        types = [value.type for value in (*plan.graph.inputs, *plan.graph.outputs)]
        for i, (at, type) in enumerate(zip(places, types, strict=True)):
            inside = ends is None or i in ends
            memory = own[at:] if inside else np.full(type.bytes + MARGIN, 0xFF, np.uint8)
            self.memory[slots.inputs + i] = memory
        for i, state in enumerate(plan.graph.states):
            bits = to_bits(state.data, state.dtype).tobytes() + bytes(MARGIN)
            self.memory[slots.states + i] = np.frombuffer(bytearray(bits), np.uint8)
        self._constants: dict[tuple[object, ...], np.ndarray] = {}

    def at(self, node: Node, pointer: Pointer) -> np.ndarray:
        if isinstance(pointer, Data):
            made = to_bits(pointer.make(), pointer.dtype)
            return self._constants.setdefault(pointer.key, made)
        if isinstance(pointer, InWorkspace):
            return self.memory[0][self.block.workspaces[node] + pointer.offset :]
        place = pointer if isinstance(pointer, Address) else Address(pointer, 0)
        operand = self.slots.operand(place.value)
        return self.memory[operand.slot][operand.offset + place.bytes :]

    def _is_last(self, value: Value) -> bool:
        return value.type.rank == 4 and self.plan.layout(value).block == 0

    def _lying(self, node: Node, value: Value) -> np.ndarray:
        """The bits of a value where it lies, which may be a part of a wider one."""
        place = self.plan.annotations.within(value)
        whole, first = place.buffer, place.channel
        flat = self.at(node, value)[: whole.type.bytes].view(STORED.get(value.dtype, value.dtype))
        if whole is value and not self._is_last(value):
            return flat.reshape(value.shape)
        batch, channels, *plane = whole.shape
        if self._is_last(value):
            array = flat.reshape(batch, *plane, channels).transpose(0, 3, 1, 2)
        else:
            array = flat.reshape(whole.shape)
        return array[:, first : first + value.shape[1]]

    def read(self, node: Node, value: Value) -> np.ndarray:
        if isinstance(value, Constant):
            return value.data
        return from_bits(np.ascontiguousarray(self._lying(node, value)), value.dtype)

    def write(self, node: Node, value: Value, array: np.ndarray) -> None:
        bits = to_bits(np.ascontiguousarray(np.reshape(array, value.shape)), value.dtype)
        lying = self._lying(node, value)
        lying[...] = np.asarray(bits).view(lying.dtype).reshape(value.shape)


class Dense(L.Layer):
    """A dense block: each layer normalizes all channels so far, of which some begin at no cache
    line."""

    def __init__(self) -> None:
        self.stem = L.Conv2d(3, 32, 3, 2, 1, bias=False)
        self.norms, self.convs = L.LayerList(), L.LayerList()
        channels = 32
        for growth in (16, 8, 16):
            self.norms.append(L.BatchNorm2d(channels))
            self.convs.append(L.Conv2d(channels, growth, 3, padding=1, bias=False))
            channels += growth
        self.norm, self.relu, self.concat = L.BatchNorm2d(channels), L.ReLU(), L.Concat()
        self.head = L.Sequential(L.AdaptiveAvgPool2d(1), L.Flatten(), L.Linear(channels, 5))

    def forward(self, x: Any) -> Any:
        y = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            y = self.concat(y, conv(self.relu(norm(y))))
        return self.head(self.relu(self.norm(y)))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_statistics_that_lie_side_by_side(precision: str, tmp_path: Path) -> None:
    objective = Objective(md.losses.CrossEntropy(), {})
    optimizer = md.optim.SGD(0.02, momentum=0.9)
    graph = step_graph(Dense().initialize(0), (SHAPE,), objective, optimizer)
    plan = planned_graph(graph, precision, True)
    found = plan.annotations
    joins = [n for n in plan.graph.nodes if isinstance(n.op, Concat) and n.output.type.rank == 1]
    copied = [[value.shape for value, _ in found.copied(join)] for join in joins]
    # The last layer's begin at byte 4 * 56, in the join of the mean and in that of the variance.
    assert sorted(copied) == [[], [], [], [], [(16,)], [(16,)]]
    random = np.random.default_rng(0)
    given = [random.standard_normal(SHAPE, np.float32) + 1, np.array([0, 3, 1, 4])]
    check_values(plan, [*given, np.array(0.02, np.float32)], precision, tmp_path)


@pytest.mark.parametrize("precision", ["float32", "tf32", "float16", "bfloat16"])
def test_a_step(precision: str, tmp_path: Path) -> None:
    optimizer = md.optim.SGD(0.02, momentum=0.9, weight_decay=1e-3)
    objective = Objective(md.losses.CrossEntropy(), {})
    graph = step_graph(Network().initialize(0), (SHAPE,), objective, optimizer)
    random = np.random.default_rng(0)
    given = [random.standard_normal(SHAPE, np.float32), np.array([0, 3, 1, 4])]
    given.append(np.array(0.02, np.float32))  # the learning rate
    check_values(planned_graph(graph, precision, True), given, precision, tmp_path)


class Squeezed(L.Layer):
    """Channels, of a number that fills no block of threads, that are scaled by what is computed of
    the averages of their planes."""

    def __init__(self) -> None:
        self.first = L.Conv2d(3, 40, 3, padding=1, bias=False)
        self.deep = L.Conv2d(40, 40, 3, 2, 1, groups=40, bias=False)
        self.last = L.Conv2d(40, 16, 1, bias=False)
        self.norms = L.LayerList(*(L.BatchNorm2d(n) for n in (40, 40, 16)))
        self.narrow, self.wide = L.Conv2d(40, 8, 1), L.Conv2d(8, 40, 1)
        self.silu, self.gate, self.mean = L.SiLU(), L.Hardsigmoid(), L.AdaptiveAvgPool2d(1)
        self.head = L.Sequential(L.Flatten(), L.Linear(16, 5))

    def forward(self, x: Any) -> Any:
        y = self.silu(self.norms[0](self.first(x)))
        y = self.silu(self.norms[1](self.deep(y)))
        y = y * self.gate(self.wide(self.silu(self.narrow(self.mean(y)))))
        return self.head(self.mean(self.norms[2](self.last(y))))


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_a_step_with_gates(precision: str, tmp_path: Path) -> None:
    """In half precision planes are added up where what is added is computed, and what a gate gave
    is read there."""
    objective = Objective(md.losses.CrossEntropy(), {})
    graph = step_graph(Squeezed().initialize(0), (SHAPE,), objective, md.optim.SGD(0.02))
    plan = planned_graph(graph, precision, True)
    sweeps = [n.op for n in plan.graph.nodes if isinstance(n.op, FusedSums)]
    sweeps = [op for op in sweeps if len(op.shape) == 4 and op.shape[2:] != (1, 1)]
    half = precision != "float32"
    assert any(op.by_plane for op in sweeps) == any(op.plane_numbers for op in sweeps) == half
    # Nothing of the planes is stored in float32 then, but for the images.
    wide = [v for n in plan.graph.nodes for v in n.outputs if v.dtype == "float32"]
    assert any(v.shape[:1] == SHAPE[:1] and v.shape[2:] == (8, 8) for v in wide) != half
    random = np.random.default_rng(0)
    given = [random.standard_normal(SHAPE, np.float32), np.array([0, 3, 1, 4])]
    check_values(plan, [*given, np.array(0.02, np.float32)], precision, tmp_path)


class Twins:
    """A meeting with a rank that has the same values."""

    size = 2

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        for array in arrays:
            array *= 2

    def agree(self, text: str) -> None:
        assert "SumOverRanks" in text


@pytest.mark.parametrize("synchronized", [False, True])
def test_a_step_of_two_ranks(
    synchronized: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each sum over ranks is computed as late as it can be: where a result is read."""
    monkeypatch.setattr(ranks, "_now", [Twins()])
    network, scaling = Network().initialize(0), md.optim.LossScale(8.0)
    graph = step_graph(
        network,
        (SHAPE,),
        Objective(md.losses.CrossEntropy(), {}),
        md.optim.Adam(0.02),
        scaling=scaling,
        ranks=Ranks(2, synchronized),
    )
    random = np.random.default_rng(0)
    given = [random.standard_normal(SHAPE, np.float32), np.array([0, 3, 1, 4])]
    numbers = md.optim.Adam(0.02).numbers(0)
    given += [np.array(number, np.float32) for number in numbers.values()]
    check_values(planned_graph(graph, "float16", True), given, "float16", tmp_path)


def check_values(
    plan: Plan,
    given: list[np.ndarray],
    precision: str,
    folder: Path,
    call: Callable[[Task, list[int]], None] | None = None,
    checked: Collection[Value] | None = None,
    ends: Collection[int] | None = None,
) -> None:
    """Every value, after the node that makes it, is what the reference makes of the plan.

    call: computes what no kernel of ours does, at addresses; by default the reference does.
    checked: only these values are looked at.
    ends: which inputs lie with the values, as :class:`Memory` takes them.
    """
    nodes = plan.graph.nodes
    values = [value for node in nodes for value in node.outputs]
    everything = Graph(plan.graph.inputs, values, nodes, plan.graph.name)
    expected = dict(zip(values, evaluate(everything, given), strict=True))

    tasks = lower_plan(plan, H200, precision == "tf32")
    emulated = Emulated([t.work.source for t in tasks if isinstance(t.work, Launch)], folder)
    memory = Memory(plan, tasks, ends)
    for value, array in zip(plan.graph.inputs, given, strict=True):
        memory.write(nodes[0], value, array)
    error = {"float16": 2e-2, "bfloat16": 1e-1}.get(precision, 1e-4)
    for i, task in enumerate(tasks):
        node = task.node
        if isinstance(task.work, RankSum) and task.work.begins:
            for value in node.outputs:  # from now on it may write there
                memory.write(node, value, np.full(value.shape, np.nan))
            continue
        if isinstance(task.work, Launch):
            emulated.launch(task.work, [memory.at(node, pointer) for pointer in task.pointers])
        elif call is not None:
            call(task, [memory.at(node, pointer).ctypes.data for pointer in task.pointers])
        else:
            made = node.op.reference(*(memory.read(node, value) for value in node.inputs))
            for value, array in zip(node.outputs, made, strict=True):
                memory.write(node, value, array)
        follows = i + 1 < len(tasks) and tasks[i + 1].node is node
        if follows and not isinstance(node.op, SumOverRanks):
            continue
        for value in node.outputs:
            if checked is not None and value not in checked:
                continue
            wanted = np.asarray(expected[value], np.float64)
            away = np.linalg.norm(np.asarray(memory.read(node, value), np.float64) - wanted)
            # A sum that is zero but for rounding has no size of its own.
            size = max(float(np.linalg.norm(wanted)), 1e-2)
            assert away <= error * size, f"{value!r}: {away / size}"


def test_gradients_in_the_memory_of_what_was_kept_for_them(tmp_path: Path) -> None:
    """Their values take the places of those that nobody reads any more."""
    halves = ForwardBackward(to_graph(Network().initialize(0), SHAPE), (0,))
    graph = halves.backward.graph
    first = len(halves.backward.given)
    kept = range(first, first + len(halves.backward.kept))
    plan = planned_graph(graph, "float32")
    sizes = [graph.inputs[place].type.bytes for place in kept]
    block = lay_out(plan, {}, kept)
    assert max(block.bytes, sum(sizes)) <= block.own_bytes < block.bytes + sum(sizes)
    random = np.random.default_rng(0)
    given = [random.standard_normal(v.shape).astype(np.float32) for v in plan.graph.inputs]
    check_values(plan, given, "float32", tmp_path, ends=kept)


@pytest.mark.parametrize("frozen", [True, False])
def test_planes_that_are_added_up_on_the_way(frozen: bool, tmp_path: Path) -> None:
    """Blocks of pooling, normalization and ReLU, of which no plane is stored for a sum alone."""
    random = np.random.default_rng(0)
    # Maxima before the statistics of a batch, and shifts of zero, have sums of zero but for
    # rounding.
    pool = L.MaxPool2d(3, 1, 1)
    pools = [pool, *[pool if frozen else L.AvgPool2d(3, 1, 1)] * 2]
    blocks = [L.Sequential(pool, L.BatchNorm2d(4), L.ReLU()) for pool in pools]
    network = L.Sequential(*blocks).initialize(0)
    drawn = {
        name: random.standard_normal(4).astype(np.float32) for name in ("0.1.bias", "1.1.bias")
    }
    network.load_state_dict({**network.state_dict(), **drawn})
    if frozen:
        network.freeze()
    forward = to_graph(network, (3, 4, 11, 9), mode="train")
    scales = [s for s in forward.states if s.name.endswith((".weight", ".bias"))]
    graph = pullback(forward, [*forward.inputs, *scales])
    outputs = (*forward.outputs, *graph.outputs)
    graph = Graph(graph.inputs, outputs, graph.nodes, updates=forward.updates)
    plan = planned_graph(graph, "float32", True)
    assert any(isinstance(n.op, FusedSequence) and n.op.summed for n in plan.graph.nodes)
    given = [random.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    check_values(plan, given, "float32", tmp_path)


@pytest.mark.parametrize("plane", [(11, 9), (56, 56)])
def test_variances_of_planes_far_from_zero(plane: tuple[int, int], tmp_path: Path) -> None:
    """Squares of values would leave no digit of what lies so close to its mean.

    What planes' means differ by has as many digits as means of float32 leave it, which is enough
    for the variance of all, and not looked at by itself.
    """

    def build(t: Any, x: Any) -> list[Any]:
        y = max_pool(x)
        mean = apply(ops.Reduce("mean", (0, 2, 3)), y)
        return [relu(y), mean, apply(ops.Variance(), y, mean)]

    graph = graph_of(build, (3, 2, *plane))
    plan = planned_graph(graph, "float32")
    assert any(isinstance(n.op, FusedSequence) and n.op.spread for n in plan.graph.nodes)
    x = np.random.default_rng(0).standard_normal((3, 2, *plane)) + 1000.0
    check_values(plan, [x.astype(np.float32)], "float32", tmp_path, checked=plan.graph.outputs)
