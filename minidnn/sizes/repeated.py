"""Constants that are repeated as often as a size says, as a class token is for each image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minidnn.graph.ir import Constant, Graph, Rewriter
from minidnn.graph.operators import Expand
from minidnn.graph.types import TensorType
from minidnn.runtime.alike import has_same_numbers

__all__ = ["with_repeats"]


def with_repeats(graphs: Sequence[Graph]) -> list[Graph]:
    """Graphs of a network for several sizes, in which nodes repeat what constants repeat: so the
    constants are the same for all sizes."""
    rows = list(zip(*(graph.constants for graph in graphs), strict=False))
    found: list[dict[Constant, Constant]] = [{} for _ in graphs]
    for row in rows:
        once = _once(row)
        if once is not None:
            for each, constant in zip(found, row, strict=True):
                each[constant] = once
    return [_repeating(graph, each) for graph, each in zip(graphs, found, strict=True)]


def _once(row: Sequence[Constant]) -> Constant | None:
    """What constants of several sizes repeat along the axes whose sizes differ; None if those do
    not differ, or nothing is repeated."""
    first = row[0]
    same = all(
        (each.type.rank, each.dtype, each.name) == (first.type.rank, first.dtype, first.name)
        for each in row
    )
    if not same or all(each.shape == first.shape for each in row):
        return None
    axes = [axis for axis in range(first.type.rank) if len({each.shape[axis] for each in row}) > 1]
    cut = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(first.type.rank))
    once = np.ascontiguousarray(first.data[cut])
    for each in row:
        repeats = has_same_numbers(np.broadcast_to(once, each.shape), each.data)
        if not repeats:
            return None
    return Constant(TensorType(once.shape, first.dtype), first.name, once)


def _repeating(graph: Graph, once: dict[Constant, Constant]) -> Graph:
    if not once:
        return graph
    rewriter = Rewriter(graph)
    for constant, small in once.items():
        name = rewriter.fresh(f"{constant.name}.repeated")
        node = rewriter.add(Expand(constant.shape), [small], name)
        rewriter.replace(constant, node.output)
    for node in graph.nodes:
        rewriter.keep(node)
    return rewriter.finish()
