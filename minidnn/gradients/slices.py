"""Gradients by a value that is only looked at slice by slice: a join, where each would add zeros.

Splits of channels and of packed projections are such slices.  What is added up element by element
otherwise, each slice's gradient with zeros around it, costs a pass over the whole for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operators import Slice

__all__ = ["SlicedValue", "sliced_values"]


@dataclass(frozen=True)
class SlicedValue:
    """A value, the axis along which slices follow each other, and these in their order."""

    value: Value
    axis: int
    nodes: tuple[Node, ...]


def sliced_values(graph: Graph) -> dict[Node, SlicedValue]:
    """The values that slices cover, each element once, by the slices."""
    found: dict[Node, SlicedValue] = {}
    for value, readers in graph.readers.items():
        slices = [node for node in readers if isinstance(node.op, Slice)]
        if len(slices) > 1 and (sliced := _covered(value, slices)) is not None:
            found.update(dict.fromkeys(slices, sliced))
    return found


def _covered(value: Value, slices: Iterable[Node]) -> SlicedValue | None:
    cuts: dict[Node, tuple[int, int, int]] = {}
    for node in slices:
        op = node.op
        assert isinstance(op, Slice)
        shape = value.shape
        narrow = [d for d, size in enumerate(op.sizes) if size != shape[d]]
        if len(narrow) != 1 or any(step != 1 for step in op.steps):
            return None
        (axis,) = narrow
        cuts[node] = axis, op.starts[axis], op.sizes[axis]
    axes = {axis for axis, _, _ in cuts.values()}
    if len(axes) != 1:
        return None
    (axis,) = axes
    end = 0
    ordered = sorted(cuts, key=lambda node: cuts[node][1])
    for node in ordered:
        _, start, size = cuts[node]
        if start != end or size == 0:
            return None
        end += size
    return SlicedValue(value, axis, tuple(ordered)) if end == value.shape[axis] else None
