"""Tasks of row regions, and of nodes that reduce or normalize trailing axes, viewed as
rows."""

from __future__ import annotations

from collections.abc import Sequence

from ...fusion.rows import FusedRows, region_of_row_operator
from ...graph.ir import Node, Value
from ...memory import Annotations
from .row_region import print_rows, why_not_rows
from .row_tiles import RowTile
from .strided import element_of, strided_of
from .task import InWorkspace, Pointer, Task, pointer_to


def tasks_of_rows(
    node: Node,
    op: FusedRows,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    tile: RowTile | None = None,
) -> Sequence[Task]:
    """The tasks of a region on contiguous values: its kernel and, for column sums, one that adds
    partial sums.  The ``tile`` is the cost model's choice by default."""
    printed = print_rows(op, tile)
    outer = dict(zip(op.body.inputs, inputs, strict=True))
    outer |= dict(zip(op.body.outputs, outputs, strict=True))
    pointers: list[Pointer] = [pointer_to(outer.get(v, v)) for v in printed.operands]
    if printed.parts is None:
        return (Task(node, printed.first, tuple(pointers)),)
    workspace, sums = InWorkspace(0), (outputs[i] for i in printed.sums)
    return (
        Task(node, printed.first, (*pointers, workspace), (), printed.bytes),
        Task(node, printed.parts, (workspace, *sums), (), printed.bytes),
    )


def tasks_of_row_operator(annotations: Annotations, node: Node) -> Sequence[Task] | None:
    """The tasks of a node that reduces or normalizes trailing axes; None if it does not, or if its
    rows are not contiguous or do not fit in registers."""
    op = region_of_row_operator(node) if node.inputs else None
    if op is None or why_not_rows(op) is not None:
        return None
    for value in node.inputs:
        if element_of("i", value.shape, strided_of(annotations, value)) != "i":
            return None
    return tasks_of_rows(node, op, node.inputs, node.outputs)
