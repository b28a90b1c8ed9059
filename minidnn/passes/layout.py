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

from collections.abc import Iterator, Mapping

from minidnn.fusion.target import Target
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.layout import PLANAR, Layout
from minidnn.graph.operators import Reorder
from minidnn.memory import Annotations
from minidnn.passes.infrastructure import Context, Pass


def layout(graph: Graph, context: Context) -> Graph:
    """See the module."""
    prices = _Prices(graph, context.target)
    offered = {node: context.target.layouts(node) for node in graph.nodes}
    planar = {n: PLANAR if PLANAR in offer else offer[0] for n, offer in offered.items()}
    starts = ({node: layouts[0] for node, layouts in offered.items()}, planar)
    settled = [_settle(prices, offered, start) for start in starts]
    chosen = min(settled, key=prices.total)
    for node, own in chosen.items():
        if own != planar[node] and not context.allow(f"compute {node.name} in {own}"):
            chosen[node] = planar[node]
    result, layouts = _with_reorders(prices, chosen)
    context.annotations = Annotations(layouts)
    return result


Chosen = Mapping[Node, Layout]


class _Prices:
    """What it costs to compute nodes in the layouts chosen for them, conversions included."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        #: The nodes that read a value, each in a layout of its own choice.
        self.readers = {
            value: [reader for reader in readers if not target.reads_any(reader, value)]
            for value, readers in graph.readers.items()
            if value.type.rank == 4 and not isinstance(value, Constant)
        }
        self._conversion = {
            value: target.seconds(0, 2 * value.type.bytes) for value in self.readers
        }
        self._values = {
            node: [v for v in dict.fromkeys((*node.tensors, *node.outputs)) if v in self.readers]
            for node in graph.nodes
        }

    def local(self, chosen: Chosen, node: Node) -> float:
        """Of a node, and of converting what it reads and writes."""
        own = self.target.layout_seconds(node, chosen[node])
        return own + sum(self._convert(chosen, value) for value in self._values[node])

    def total(self, chosen: Chosen) -> float:
        own = sum(self.target.layout_seconds(node, chosen[node]) for node in self.graph.nodes)
        return own + sum(self._convert(chosen, value) for value in self.graph.values)

    def neighbours(self, node: Node) -> Iterator[Node]:
        """The nodes whose own prices change with a node's layout."""
        for value in self._values[node]:
            yield from self.graph.readers[value]
            if value.producer is not None:
                yield value.producer

    def wanted(self, chosen: Chosen, value: Value) -> tuple[Layout, ...]:
        """The layouts in which a value is read, other than the one in which it is made."""
        if value not in self.readers:
            return ()
        made = chosen[value.producer] if value.producer is not None else PLANAR
        reads = self.target.reads
        wanted = dict.fromkeys(reads(r, value, chosen[r]) for r in self.readers[value])
        if value in self.graph.results:
            wanted[PLANAR] = None
        wanted.pop(made, None)
        return tuple(wanted)

    def _convert(self, chosen: Chosen, value: Value) -> float:
        count = len(self.wanted(chosen, value))
        return count * self._conversion[value] if count else 0.0


def _settle(
    prices: _Prices, offered: Mapping[Node, tuple[Layout, ...]], start: Chosen
) -> dict[Node, Layout]:
    """Changes one node's layout after another while that saves time."""
    chosen = dict(start)
    due = {node for node, layouts in offered.items() if len(layouts) > 1}
    while due:
        for node in prices.graph.nodes:
            if node not in due:
                continue
            due.remove(node)
            before, costs = chosen[node], {}
            for option in offered[node]:
                chosen[node] = option
                costs[option] = prices.local(chosen, node)
            best = min(costs, key=costs.__getitem__)
            chosen[node] = best if costs[best] < costs[before] else before
            if chosen[node] != before:
                due.update(n for n in prices.neighbours(node) if len(offered[n]) > 1)
    return chosen


def _with_reorders(prices: _Prices, chosen: Chosen) -> tuple[Graph, dict[Value, Layout]]:
    graph, target = prices.graph, prices.target
    rewriter = Rewriter(graph)
    layouts: dict[Value, Layout] = {}
    converted: dict[tuple[Value, Layout], Value] = {}

    def convert(value: Value) -> None:
        """Adds the reorders of a value of the old graph, right after it is made."""
        made = chosen[value.producer] if value.producer is not None else PLANAR
        new = rewriter.value(value)
        if value.type.rank == 4:
            layouts[new] = made
        for wanted in prices.wanted(chosen, value):
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
