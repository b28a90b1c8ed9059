"""Which operations of a captured program are taken, in as few and as large parts as can be.

Every operation that is computed at run time gets a level: the number of changes between taken and
left on the way to it on which there are most.  The taken operations of one level are one part.  A
path that leaves a part passes a left operation, which raises the level, and so never comes back:
parts are convex, and there are as few as the longest such way makes necessary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch.fx import Graph, Node


@dataclass(frozen=True)
class Level:
    """Operations between which there is no change, in the program's order."""

    nodes: tuple[Node, ...]
    taken: bool


def levels(
    graph: Graph,
    left: Mapping[Node, str],
    constants: Mapping[Node, None],
) -> list[Level]:
    """The levels of all operations but ``constants``, in an order in which they can run.

    left: why an operation is left; those that are not in it are taken.
    """
    depth: dict[Node, int] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or node in constants:
            continue
        # Even levels are taken, odd ones left.
        own = 1 if node in left else 0
        deepest = own
        for operand in node.all_input_nodes:
            if operand in depth:
                change = (depth[operand] - own) % 2
                deepest = max(deepest, depth[operand] + change)
        depth[node] = deepest
    found: dict[int, list[Node]] = {}
    for node, level in depth.items():
        found.setdefault(level, []).append(node)
    return [Level(tuple(found[level]), level % 2 == 0) for level in sorted(found)]
