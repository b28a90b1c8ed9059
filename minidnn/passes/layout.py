"""layout: chooses how each value lies in memory, for the whole graph at once.

Handles: every node runs in one of the layouts that the target offers for it; where a reader
wants another layout than the producer's, a Reorder is put between them, once per value and
layout; a node that reads any layout wants none.  The choice minimises predicted time,
conversions included: from the target's preferred layouts and from NCHW everywhere, single nodes
are changed while that helps, and the better end is taken (iterated conditional modes).  Graph
inputs and outputs are NCHW, as callers have them, and so are states.
Refuses: nothing; values that are not of rank 4 have no layout.
"""

from __future__ import annotations

from collections.abc import Mapping

from minidnn.fusion.target import Target
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.layout import PLANAR, Layout
from minidnn.graph.operators import Reorder
from minidnn.memory.annotations import Annotations
from minidnn.passes.infrastructure import Context, Pass


def layout(graph: Graph, context: Context) -> Graph:
    """See the module."""
    target = context.target
    offered = {node: target.layouts(node) for node in graph.nodes}
    planar = {n: PLANAR if PLANAR in offer else offer[0] for n, offer in offered.items()}
    starts = ({node: layouts[0] for node, layouts in offered.items()}, planar)
    settled = [_settle(graph, target, offered, start) for start in starts]
    chosen = min(settled, key=lambda choice: _total(graph, target, choice))
    for node, own in chosen.items():
        if own != planar[node] and not context.allow(f"compute {node.name} in {own}"):
            chosen[node] = planar[node]
    result, layouts = _with_reorders(graph, target, chosen)
    context.annotations = Annotations(layouts)
    return result


def _settle(
    graph: Graph,
    target: Target,
    offered: Mapping[Node, tuple[Layout, ...]],
    start: dict[Node, Layout],
) -> dict[Node, Layout]:
    """Changes one node's layout after another while that saves time."""
    chosen = dict(start)
    changed = True
    while changed:
        changed = False
        for node, layouts in offered.items():
            if len(layouts) == 1:
                continue
            costs = []
            for option in layouts:
                chosen[node], before = option, chosen[node]
                costs.append((_local(graph, target, chosen, node), option))
                chosen[node] = before
            cost, best = min(costs, key=lambda entry: entry[0])
            if cost < _local(graph, target, chosen, node):
                chosen[node] = best
                changed = True
    return chosen


def _local(graph: Graph, target: Target, chosen: Mapping[Node, Layout], node: Node) -> float:
    values = dict.fromkeys((*node.tensors, *node.outputs))
    own = target.layout_seconds(node, chosen[node])
    return own + sum(_conversion(graph, target, chosen, value) for value in values)


def _total(graph: Graph, target: Target, chosen: Mapping[Node, Layout]) -> float:
    own = sum(target.layout_seconds(node, chosen[node]) for node in graph.nodes)
    return own + sum(_conversion(graph, target, chosen, value) for value in graph.values)


def _conversion(graph: Graph, target: Target, chosen: Mapping[Node, Layout], value: Value) -> float:
    count = len(_wanted(graph, target, chosen, value))
    return count * target.seconds(0, 2 * value.type.bytes) if count else 0.0


def _wanted(
    graph: Graph, target: Target, chosen: Mapping[Node, Layout], value: Value
) -> tuple[Layout, ...]:
    """The layouts in which a value is read, other than the one in which it is made."""
    if value.type.rank != 4 or isinstance(value, Constant):
        return ()
    made = chosen[value.producer] if value.producer is not None else PLANAR
    readers = [r for r in graph.readers[value] if not target.reads_any(r, value)]
    wanted = dict.fromkeys(target.reads(r, value, chosen[r]) for r in readers)
    if value in graph.results:
        wanted[PLANAR] = None
    wanted.pop(made, None)
    return tuple(wanted)


def _with_reorders(
    graph: Graph, target: Target, chosen: Mapping[Node, Layout]
) -> tuple[Graph, dict[Value, Layout]]:
    rewriter = Rewriter(graph)
    layouts: dict[Value, Layout] = {}
    converted: dict[tuple[Value, Layout], Value] = {}

    def convert(value: Value) -> None:
        """Adds the reorders of a value of the old graph, right after it is made."""
        made = chosen[value.producer] if value.producer is not None else PLANAR
        new = rewriter.value(value)
        if value.type.rank == 4:
            layouts[new] = made
        for wanted in _wanted(graph, target, chosen, value):
            name = rewriter.fresh(f"{value.name}.{wanted}")
            node = rewriter.add(Reorder(wanted), [new], name, name)
            converted[value, wanted] = node.output
            layouts[node.output] = wanted

    for value in (*graph.inputs, *graph.states):
        convert(value)
    for node in graph.nodes:
        inputs = [
            rewriter.value(v)
            if target.reads_any(node, v)
            else converted.get((v, target.reads(node, v, chosen[node])), rewriter.value(v))
            for v in node.inputs
        ]
        if inputs == list(node.inputs):
            rewriter.keep(node)
        else:
            new = rewriter.add(node.op, inputs, node.name, node.source)
            for old, output in zip(node.outputs, new.outputs, strict=True):
                rewriter.replace(old, output)
        for value in node.outputs:
            convert(value)
    for value in graph.results:
        if (value, PLANAR) in converted:
            rewriter.replace(value, converted[value, PLANAR])
    return rewriter.finish(), layouts


LAYOUT = Pass("layout", layout, requires=("absorb", "depth_first"))
