"""layout: chooses the memory layout of each value, for the whole graph at once.

Handles: every node runs in one of the layouts that the target offers for it; where a reader
needs another layout than the producer's, a Reorder is inserted between them, once per value and
layout; nodes that read any layout need none.  The choice minimises predicted time, conversions
included: two searches, from the target's preferred layouts and from NCHW everywhere, change the
layout of single nodes while that helps (iterated conditional modes), and the better result counts.
Graph inputs and outputs are NCHW, as callers expect, and so are states.
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
    for node, choice in chosen.items():
        if choice != planar[node] and not context.allow(f"compute {node.name} in {choice}"):
            chosen[node] = planar[node]
    result, layouts = _with_reorders(prices, chosen)
    context.annotations = Annotations(layouts)
    return result


Chosen = Mapping[Node, Layout]


class _Prices:
    """Predicted seconds of nodes in the layouts chosen for them, conversions included."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        #: For each value that has a layout, the readers that need one; others read any.
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
        """Seconds of a node, and of all conversions of the values that it reads and writes."""
        seconds = self.target.layout_seconds(node, chosen[node])
        return seconds + sum(self._convert(chosen, value) for value in self._values[node])

    def total(self, chosen: Chosen) -> float:
        """Seconds of all nodes and conversions."""
        seconds = sum(self.target.layout_seconds(node, chosen[node]) for node in self.graph.nodes)
        return seconds + sum(self._convert(chosen, value) for value in self.graph.values)

    def neighbours(self, node: Node) -> Iterator[Node]:
        """The nodes whose local prices depend on a node's layout."""
        for value in self._values[node]:
            yield from self.graph.readers[value]
            if value.producer is not None:
                yield value.producer

    def wanted(self, chosen: Chosen, value: Value) -> tuple[Layout, ...]:
        """The layouts in which a value is read, other than its producer's."""
        if value not in self.readers:
            return ()
        produced = chosen[value.producer] if value.producer is not None else PLANAR
        reads = self.target.reads
        wanted = dict.fromkeys(reads(r, value, chosen[r]) for r in self.readers[value])
        if value in self.graph.results:
            wanted[PLANAR] = None
        wanted.pop(produced, None)
        return tuple(wanted)

    def _convert(self, chosen: Chosen, value: Value) -> float:
        count = len(self.wanted(chosen, value))
        return count * self._conversion[value] if count else 0.0


def _settle(
    prices: _Prices, offered: Mapping[Node, tuple[Layout, ...]], start: Chosen
) -> dict[Node, Layout]:
    """The layouts at a local minimum of the price: changes the layout of single nodes while that
    saves time."""
    chosen = dict(start)
    pending = {node for node, layouts in offered.items() if len(layouts) > 1}
    while pending:
        for node in prices.graph.nodes:
            if node not in pending:
                continue
            pending.remove(node)
            before, costs = chosen[node], {}
            for option in offered[node]:
                chosen[node] = option
                costs[option] = prices.local(chosen, node)
            best = min(costs, key=costs.__getitem__)
            chosen[node] = best if costs[best] < costs[before] else before
            if chosen[node] != before:
                pending.update(n for n in prices.neighbours(node) if len(offered[n]) > 1)
    return chosen


def _with_reorders(prices: _Prices, chosen: Chosen) -> tuple[Graph, dict[Value, Layout]]:
    """The graph with Reorders between nodes of different layouts, and the layouts of its values."""
    graph, target = prices.graph, prices.target
    rewriter = Rewriter(graph)
    layouts: dict[Value, Layout] = {}
    converted: dict[tuple[Value, Layout], Value] = {}

    def convert(value: Value) -> None:
        """Adds the Reorders of a value of the old graph, right after its producer."""
        produced = chosen[value.producer] if value.producer is not None else PLANAR
        new = rewriter.value(value)
        if value.type.rank == 4:
            layouts[new] = produced
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
