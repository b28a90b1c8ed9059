"""How an instance's memory is laid out: inputs, outputs and workspaces lie where no value does.

The plan's arena says where values lie.  A workspace is in use during one node, an input until the
last node that reads it, an output from the first node that writes it: what the arena has free
meanwhile is enough for most of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from ...graph.ir import Node, Stored, Value
from ...graph.types import FLOATS
from ...memory.liveness import Lifetime, lifetimes
from ...runtime.plan import Plan
from .memory import aligned


@dataclass(frozen=True)
class Block:
    """Offsets in one block of memory, whose first bytes are the plan's arena.

    ``bytes`` holds the values and the workspaces, ``own_bytes`` also the inputs and outputs of an
    instance that is not bound to a caller's.
    """

    bytes: int
    own_bytes: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspaces: Mapping[Node, int]


def lay_out(
    plan: Plan, workspaces: Mapping[Node, int], ends: Container[int] | None = None
) -> Block:
    """The memory of an instance.

    Args:
        workspaces: how many bytes nodes want.
        ends: the numbers of the inputs, then outputs, that lie in it beside values and workspaces,
            where those that do not begin at 0; by default all of them.
    """
    graph = plan.graph
    index = {node: i for i, node in enumerate(graph.nodes)}
    arena = plan.arena.offsets
    placed = [(arena[life.value], life) for life in lifetimes(graph, plan.annotations)]
    wanted = [(size, node) for node, size in workspaces.items() if size]
    offsets: dict[Node, int] = {}
    for size, node in sorted(wanted, key=lambda pair: (-pair[0], index[pair[1]])):
        life = Lifetime(node.outputs[0], size, index[node], index[node])
        offsets[node] = _free(placed, life)
        placed.append((offsets[node], life))
    total = max((offset + life.bytes for offset, life in placed), default=0)
    total = max(total, plan.arena.bytes)
    lives = [_input(plan, value) for value in graph.inputs]
    lives += [_output(plan, value) for value in graph.outputs]
    found = [0] * len(lives)
    inside = [i for i in range(len(lives)) if ends is None or i in ends]
    for i in sorted(inside, key=lambda i: (-lives[i].bytes, i)):
        found[i] = _free(placed, lives[i])
        placed.append((found[i], lives[i]))
    own = max((offset + life.bytes for offset, life in placed), default=0)
    count = len(graph.inputs)
    return Block(total, max(total, own), tuple(found[:count]), tuple(found[count:]), offsets)


def spare(plan: Plan, nodes: Iterable[Node]) -> dict[Node, int]:
    """The bytes of the largest piece of the arena in which nothing lives while a node runs: a
    workspace that fits there makes no instance larger."""
    index = {node: i for i, node in enumerate(plan.graph.nodes)}
    arena = plan.arena.offsets
    placed = sorted(
        (arena[life.value], life.bytes, life.first, life.last)
        for life in lifetimes(plan.graph, plan.annotations)
    )
    found = {}
    for node in nodes:
        now, end, largest = index[node], 0, 0
        for offset, size, first, last in placed:
            if first <= now <= last and size:
                largest = max(largest, offset - end)
                end = max(end, aligned(offset + size))
        found[node] = max(largest, plan.arena.bytes - end)
    return found


def _input(plan: Plan, value: Value) -> Lifetime:
    """From the beginning to the last node that reads it.  One that is an output stays, and so do
    whole numbers, which are indices: nodes may be timed again without new inputs."""
    graph, roots = plan.graph, plan.roots
    readers = [
        i
        for i, node in enumerate(graph.nodes)
        if any(_root(roots, v) is value for v in (*node.inputs, *node.outputs))
    ]
    end = len(graph.nodes)
    given = any(_root(roots, v) is value for v in graph.outputs)
    stays = given or value.dtype not in FLOATS
    return Lifetime(value, value.type.bytes, 0, end if stays else max(readers, default=0))


def _output(plan: Plan, value: Value) -> Lifetime:
    """From the first node that writes into its storage to the end, when it is copied."""
    graph, roots = plan.graph, plan.roots
    root = _root(roots, value)
    writers = [
        i
        for i, node in enumerate(graph.nodes)
        if any(_root(roots, v) is root for v in (*node.inputs, *node.outputs))
    ]
    size, end = value.type.bytes, len(graph.nodes)
    if root in graph.inputs or isinstance(root, Stored):
        writers = []
    return Lifetime(value, size, min(writers, default=end), end)


def _root(roots: Mapping[Value, Value], value: Value) -> Value:
    return roots.get(value, value)


def _free(placed: list[tuple[int, Lifetime]], life: Lifetime) -> int:
    """The tightest gap beside those that live at the same time; else behind them."""
    neighbours = sorted(
        (offset, other.bytes) for offset, other in placed if other.overlaps(life) and other.bytes
    )
    best, tightest, end = -1, -1, 0
    for offset, size in neighbours:
        gap = offset - end
        if gap >= life.bytes and (tightest < 0 or gap < tightest):
            best, tightest = end, gap
        end = max(end, aligned(offset + size))
    return end if best < 0 else best
