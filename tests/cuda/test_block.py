"""The memory of an instance: nothing lies where something else is in use."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.backends.cuda.block import Block, lay_out, spare
from minidnn.gradients.forward_backward import ForwardBackward
from minidnn.graph.ir import Constant, Node, Value
from minidnn.layers.build import to_graph
from minidnn.memory import touched
from minidnn.runtime.plan import Plan

from .lowered import planned


def in_use(
    plan: Plan, block: Block, sizes: dict[Node, int], ends: Container[int] | None = None
) -> list[tuple[int, int, int, int]]:
    """First and last node, first byte and the byte behind the last, for all that has a place."""
    graph = plan.graph
    index = {node: i for i, node in enumerate(graph.nodes)}
    found = []
    for root, (first, last) in touched(graph, plan.annotations).items():
        begin = plan.arena.offsets[root]
        found.append((first, last, begin, begin + root.type.bytes))
    for node, size in sizes.items():
        if size:
            begin = block.workspaces[node]
            found.append((index[node], index[node], begin, begin + size))

    def lies_in(root: Value) -> list[int]:
        return [
            i
            for i, node in enumerate(graph.nodes)
            if any(plan.roots.get(v, v) is root for v in (*node.inputs, *node.outputs))
        ]

    end = len(graph.nodes)
    kept = {plan.roots.get(value, value) for value in graph.outputs}
    for i, (value, begin) in enumerate(zip(graph.inputs, block.inputs, strict=True)):
        if ends is not None and i not in ends:
            continue
        last = end if value in kept else max(lies_in(value), default=0)
        found.append((0, last, begin, begin + value.type.bytes))
    for i, (value, begin) in enumerate(zip(graph.outputs, block.outputs, strict=True)):
        if ends is not None and len(graph.inputs) + i not in ends:
            continue
        root = plan.roots.get(value, value)
        given = isinstance(root, Constant) or root in graph.inputs
        first = end if given else min(lies_in(root))
        found.append((first, end, begin, begin + value.type.bytes))
    return found


def check(plan: Plan, sizes: dict[Node, int], ends: Container[int] | None = None) -> Block:
    block = lay_out(plan, sizes, ends)
    found = in_use(plan, block, sizes, ends)
    for i, (first, last, begin, past) in enumerate(found):
        assert past <= block.own_bytes
        for other in found[:i]:
            together = first <= other[1] and other[0] <= last
            assert not together or past <= other[2] or other[3] <= begin, (found[i], other)
    for node, begin in block.workspaces.items():
        assert begin % 256 == 0 and begin + sizes[node] <= block.bytes <= block.own_bytes
    assert all(begin % 256 == 0 for begin in (*block.inputs, *block.outputs))
    return block


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "densenet121", "inception_v3"])
def test_networks(name: str) -> None:
    net = models.get_model(name)
    plan = planned(net, (4, *net.input_shape), "float16")
    random = np.random.default_rng(0)
    for most in (0, 1 << 10, 1 << 22, 1 << 26):
        check(plan, {node: int(random.integers(most + 1)) for node in plan.graph.nodes})


def test_resnet50_needs_no_memory_beside_its_values() -> None:
    """Its gathered input, 54 MB, and the input itself lie where values come later."""
    plan = planned(models.resnet50(), (128, 3, 224, 224), "float16")
    block = check(plan, {plan.graph.nodes[0]: 128 * 115 * 115 * 16 * 2})
    assert block.own_bytes == block.bytes == plan.arena.bytes


@pytest.mark.parametrize("name", ["vgg11", "densenet121", "squeezenet1_0"])
def test_a_workspace_that_fits_the_spare_room_takes_no_more_memory(name: str) -> None:
    net = models.get_model(name)
    plan = planned(net, (4, *net.input_shape), "float32")
    room = spare(plan, [node for node in plan.graph.nodes if len(node.outputs) == 1])
    assert max(room.values()) > plan.arena.bytes // 2 > min(room.values())
    block = check(plan, {node: size - size % 256 for node, size in room.items()})
    assert block.bytes == plan.arena.bytes
    largest = max(room, key=lambda node: room[node])
    assert lay_out(plan, {largest: room[largest] + 256}).bytes > plan.arena.bytes


def test_some_ends_lie_in_it_and_the_others_elsewhere() -> None:
    """As what is kept for a backward pass, whose places values take once it was read."""
    halves = ForwardBackward(to_graph(models.resnet18(), (4, 3, 64, 64)), (0,))
    found = halves.backward
    plan = planned(found.graph, (), "float32")
    kept = range(len(found.given), len(found.given) + len(found.kept))
    block = check(plan, {node: 1 << 16 for node in plan.graph.nodes[:20]}, kept)
    bytes = sum(plan.graph.inputs[place].type.bytes for place in kept)
    assert bytes < block.own_bytes < bytes + block.bytes // 4


def test_inputs_that_are_outputs_or_indices_stay() -> None:
    x = md.Input((3, 8, 8))
    y = L.ReLU()(L.Conv2d(3, 3, 3, padding=1)(L.Conv2d(3, 3, 3, padding=1)(x)))
    plan = planned(md.Model(x, (y, x, y)), (2, 3, 8, 8), "float16")
    block = check(plan, {})
    (given,), outputs = block.inputs, block.outputs
    assert len({given, *outputs}) == 4


def test_a_workspace_that_fits_nowhere_lies_behind_the_values() -> None:
    plan = planned(L.Conv2d(3, 8, 3), (2, 3, 20, 20), "float16")
    (node,) = plan.graph.nodes[:1]
    block = check(plan, {node: 1 << 20})
    assert block.bytes >= 1 << 20 and block.own_bytes < (1 << 20) + 100_000
