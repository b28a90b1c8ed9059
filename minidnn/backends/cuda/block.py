"""The memory layout of an instance: inputs, outputs and workspaces take gaps between live values.

The plan's arena has the offsets of values.  A workspace is live during one node, an input until the
last node that reads it, an output from the first node that writes it: the arena has enough free
space meanwhile for most of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from ...graph.ir import Node, Stored, Value
from ...graph.types import FLOATS
from ...memory import ArenaAllocator, Lifetime, lifetimes
from ...runtime.plan import Plan
from .memory import ALIGNMENT, aligned


@dataclass(frozen=True)
class Block:
    """Offsets in one block of memory, whose first bytes are the plan's arena.

    ``bytes`` is its size with values and workspaces, ``own_bytes`` also with the inputs and outputs
    of an instance that is not bound to arrays of a caller.
    """

    bytes: int
    own_bytes: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspaces: Mapping[Node, int]


def lay_out(
    plan: Plan, workspaces: Mapping[Node, int], ends: Container[int] | None = None
) -> Block:
    """Lays out the memory of an instance.

    Args:
        workspaces: how many bytes nodes want.
        ends: the numbers of the inputs, then outputs, that take memory in the block; by default all
            of them.  The others have offset 0.
    """
    graph, arena = plan.graph, plan.arena.offsets
    index = {node: i for i, node in enumerate(graph.nodes)}
    values = [(life, arena[life.value]) for life in lifetimes(graph, plan.annotations)]
    allocator = ArenaAllocator(
        len(values) + len(workspaces) + len(graph.inputs) + len(graph.outputs), ALIGNMENT
    )
    for life, offset in values:
        if life.bytes:
            allocator.add(life, offset)
    total = max((offset + life.bytes for life, offset in values), default=0)
    total = max(total, plan.arena.bytes)

    def place(life: Lifetime) -> int:
        nonlocal total
        offset = allocator.place(life) if life.bytes else 0
        total = max(total, offset + life.bytes)
        return offset

    requests = [(node, size) for node, size in workspaces.items() if size]
    offsets: dict[Node, int] = {}
    for node, size in sorted(requests, key=lambda pair: (-pair[1], index[pair[0]])):
        offsets[node] = place(Lifetime(node.outputs[0], size, index[node], index[node]))
    bytes = total
    lives = _ends(plan)
    resident = [i for i in range(len(lives)) if ends is None or i in ends]
    end_offsets = [0] * len(lives)
    for i in sorted(resident, key=lambda i: (-lives[i].bytes, i)):
        end_offsets[i] = place(lives[i])
    count = len(graph.inputs)
    return Block(bytes, total, tuple(end_offsets[:count]), tuple(end_offsets[count:]), offsets)


def spare(plan: Plan, nodes: Iterable[Node]) -> dict[Node, int]:
    """For each node, the bytes of the largest gap of the arena while it runs: a workspace that fits
    there makes no instance larger."""
    index = {node: i for i, node in enumerate(plan.graph.nodes)}
    arena = plan.arena.offsets
    placed = sorted(
        (arena[life.value], life.bytes, life.first, life.last)
        for life in lifetimes(plan.graph, plan.annotations)
    )
    largest_gaps = {}
    for node in nodes:
        step, end, largest = index[node], 0, 0
        for offset, size, first, last in placed:
            if first <= step <= last and size:
                largest = max(largest, offset - end)
                end = max(end, aligned(offset + size))
        largest_gaps[node] = max(largest, plan.arena.bytes - end)
    return largest_gaps


def _ends(plan: Plan) -> list[Lifetime]:
    """The lifetimes of inputs, then outputs.

    An input is live from the beginning to the last node that reads it.  One that is an output stays
    live, and so do integers, which are indices: nodes may be timed again without new inputs.  An
    output is live from the first node that writes into its storage to the end, when it is copied.
    """
    graph, roots = plan.graph, plan.roots
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for i, node in enumerate(graph.nodes):
        for value in (*node.inputs, *node.outputs):
            root = roots.get(value, value)
            first.setdefault(root, i)
            last[root] = i
    end, returned = len(graph.nodes), {roots.get(value, value) for value in graph.outputs}
    lives = []
    for value in graph.inputs:
        persists = value in returned or value.dtype not in FLOATS
        lives.append(Lifetime(value, value.type.bytes, 0, end if persists else last.get(value, 0)))
    for value in graph.outputs:
        root = roots.get(value, value)
        copied = root in graph.input_set or isinstance(root, Stored)
        begin = end if copied else first.get(root, end)
        lives.append(Lifetime(value, value.type.bytes, begin, end))
    return lives
