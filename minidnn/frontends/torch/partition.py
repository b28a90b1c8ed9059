"""Partitions a captured program into parts that minidnn compiles, as few and as large as possible.

An operation is taken (compiled by minidnn) or left (run by PyTorch).  Each operation that is
computed at run time gets a level: the maximum, over all paths to it, of the number of changes
between taken and left operations.  The taken operations of one level are one part.  A path that
leaves a part passes a left operation, which raises the level, so it never comes back: parts are
convex, and their number is the least that the longest path allows.  Left operations that depend on
no taken one run before all parts.

Left operations that draw random numbers keep the program's order, so that each draws the numbers
that it draws in PyTorch: none has a lower level than one before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from minidnn._torch_internals import HigherOrderOperator, OpOverload
from minidnn.frontends.torch.functional import UnderAutocast
from minidnn.frontends.torch.higher_order import OpaqueOperations

#: The level of left operations that depend on no taken one.
_FIRST = -1


@dataclass(frozen=True)
class Level:
    """The operations of one level, in the program's order.

    Attributes:
        nodes: the operations.
        taken: whether minidnn compiles them as one part; PyTorch runs them otherwise.
    """

    nodes: tuple[Node, ...]
    taken: bool


def levels(
    graph: Graph,
    left: Mapping[Node, str],
    constants: Mapping[Node, None],
) -> list[Level]:
    """Returns the levels of all operations but ``constants``, in the order in which they run.

    left: the operations that are left, with the reasons; all others are taken.
    """
    depth: dict[Node, int] = {}
    last_draw = _FIRST
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or node in constants:
            continue
        # Taken operations have even levels, left ones odd levels.
        least = _FIRST if node in left else 0
        draws = node in left and may_draw(node.target)
        deepest = last_draw if draws else least
        for operand in node.all_input_nodes:
            if operand in depth:
                change = (depth[operand] - least) % 2
                deepest = max(deepest, depth[operand] + change)
        depth[node] = deepest
        last_draw = deepest if draws else last_draw
    by_level: dict[int, list[Node]] = {}
    for node, level in depth.items():
        by_level.setdefault(level, []).append(node)
    return [Level(tuple(by_level[level]), level % 2 == 0) for level in sorted(by_level)]


def may_draw(operation: Any) -> bool:
    """Whether an operation may draw random numbers: PyTorch's operators have a tag that tells, and
    any other operator may."""
    if isinstance(operation, UnderAutocast):
        return may_draw(operation.operation)
    if isinstance(operation, OpOverload) and operation.namespace in ("aten", "prims"):
        return torch.Tag.nondeterministic_seeded in operation.tags
    return isinstance(operation, (OpOverload, HigherOrderOperator, OpaqueOperations))
