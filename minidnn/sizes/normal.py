"""Whether two graphs compute the same but for what computes nothing.

For a size of 1 front ends leave out what would move or repeat nothing, and say in other words what
keeps an axis: so a graph for 1 has other nodes than one for more, and computes the same.
"""

from __future__ import annotations

from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Reshaping
from minidnn.graph.operators import View
from minidnn.passes.simplify import is_identity
from minidnn.runtime.alike import described

__all__ = ["computes_the_same"]


def computes_the_same(one: Graph, other: Graph) -> bool:
    """Whether both graphs have the same operators on the same constants, identities and the kind of
    reshapes apart."""
    arrays = {value.name: value.data for value in one.constants}
    return described(_normal(one), arrays) == described(_normal(other), arrays)


def _normal(graph: Graph) -> Graph:
    """The graph without identities, whose reshapes are views of what is no view."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if is_identity(node):
            rewriter.replace(node.output, rewriter.value(node.inputs[0]))
        elif isinstance(node.op, Reshaping):
            whole = _unviewed(rewriter.value(node.inputs[0]))
            if whole.shape == node.output.shape:
                rewriter.replace(node.output, whole)
            else:
                new = rewriter.add(View(node.output.shape), [whole], node.name)
                rewriter.replace(node.output, new.output)
        else:
            rewriter.keep(node)
    return _without_unread(rewriter.finish())


def _unviewed(value: Value) -> Value:
    while value.producer is not None and isinstance(value.producer.op, View):
        value = value.producer.inputs[0]
    return value


def _without_unread(graph: Graph) -> Graph:
    read = set(graph.results)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if read.intersection(node.outputs):
            kept.append(node)
            read.update(node.inputs)
    outputs, names = graph.outputs, graph.output_names
    return Graph(graph.inputs, outputs, kept[::-1], graph.name, names, graph.updates)
