"""Which operations of a captured program are taken, in as few and as large parts as can be.

Every operation that is computed at run time gets a level: the number of changes between taken and
left on the way to it on which there are most.  The taken operations of one level are one part.  A
path that leaves a part passes a left operation, which raises the level, and so never comes back:
parts are convex, and there are as few as the longest such way makes necessary.  What is left and
reads nothing of what is taken runs before all of it.

Left operations that draw random numbers stay in the program's order, so that each draws those that
PyTorch would give it: none has a lower level than one before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from minidnn._torch_internals import HigherOrderOperator, OpOverload
from minidnn.frontends.torch.functional import UnderAutocast
from minidnn.frontends.torch.opaque import OpaqueOperations

#: Below the first taken level.
_FIRST = -1


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
    drawn = _FIRST
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or node in constants:
            continue
        # Even levels are taken, odd ones left.
        own = _FIRST if node in left else 0
        draws = node in left and may_draw(node.target)
        deepest = drawn if draws else own
        for operand in node.all_input_nodes:
            if operand in depth:
                change = (depth[operand] - own) % 2
                deepest = max(deepest, depth[operand] + change)
        depth[node] = deepest
        drawn = deepest if draws else drawn
    found: dict[int, list[Node]] = {}
    for node, level in depth.items():
        found.setdefault(level, []).append(node)
    return [Level(tuple(found[level]), level % 2 == 0) for level in sorted(found)]


def may_draw(operation: Any) -> bool:
    """Whether an operation may draw random numbers: one of PyTorch's says so, others may."""
    if isinstance(operation, UnderAutocast):
        return may_draw(operation.operation)
    if isinstance(operation, OpOverload) and operation.namespace in ("aten", "prims"):
        return torch.Tag.nondeterministic_seeded in operation.tags
    return isinstance(operation, (OpOverload, HigherOrderOperator, OpaqueOperations))
