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
from ...memory import Lifetime, Placed, lifetimes
from ...runtime.plan import Plan
from .memory import ALIGNMENT, aligned


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
    graph, arena = plan.graph, plan.arena.offsets
    index = {node: i for i, node in enumerate(graph.nodes)}
    found = [(life, arena[life.value]) for life in lifetimes(graph, plan.annotations)]
    placed = Placed(
        len(found) + len(workspaces) + len(graph.inputs) + len(graph.outputs), ALIGNMENT
    )
    for life, offset in found:
        if life.bytes:
            placed.add(life, offset)
    total = max((offset + life.bytes for life, offset in found), default=0)
    total = max(total, plan.arena.bytes)

    def place(life: Lifetime) -> int:
        nonlocal total
        offset = placed.place(life) if life.bytes else 0
        total = max(total, offset + life.bytes)
        return offset

    wanted = [(node, size) for node, size in workspaces.items() if size]
    offsets: dict[Node, int] = {}
    for node, size in sorted(wanted, key=lambda pair: (-pair[1], index[pair[0]])):
        offsets[node] = place(Lifetime(node.outputs[0], size, index[node], index[node]))
    bytes = total
    lives = _ends(plan)
    inside = [i for i in range(len(lives)) if ends is None or i in ends]
    at = [0] * len(lives)
    for i in sorted(inside, key=lambda i: (-lives[i].bytes, i)):
        at[i] = place(lives[i])
    count = len(graph.inputs)
    return Block(bytes, total, tuple(at[:count]), tuple(at[count:]), offsets)


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


def _ends(plan: Plan) -> list[Lifetime]:
    """When inputs, then outputs, are in use.

    An input is from the beginning to the last node that reads it.  One that is an output stays, and
    so do whole numbers, which are indices: nodes may be timed again without new inputs.  An output
    is from the first node that writes into its storage to the end, when it is copied.
    """
    graph, roots = plan.graph, plan.roots
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for i, node in enumerate(graph.nodes):
        for value in (*node.inputs, *node.outputs):
            root = roots.get(value, value)
            first.setdefault(root, i)
            last[root] = i
    end, given = len(graph.nodes), {roots.get(value, value) for value in graph.outputs}
    lives = []
    for value in graph.inputs:
        stays = value in given or value.dtype not in FLOATS
        lives.append(Lifetime(value, value.type.bytes, 0, end if stays else last.get(value, 0)))
    for value in graph.outputs:
        root = roots.get(value, value)
        copied = root in graph.input_set or isinstance(root, Stored)
        begin = end if copied else first.get(root, end)
        lives.append(Lifetime(value, value.type.bytes, begin, end))
    return lives
