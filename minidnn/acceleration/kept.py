"""Values that lie with their channels last between a program forwards and the one backwards.

In half precision that is how devices compute them; only what others read has to lie as PyTorch has
it.  There an axis is moved where nothing has to be copied for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operators import Transpose

_LAST = Transpose((0, 2, 3, 1))
_BACK = Transpose((0, 3, 1, 2))


def is_image(value: Value) -> bool:
    """Whether it makes a difference where a value's channels lie."""
    return value.type.rank == 4 and value.shape[1] > 1 and value.type.plane[2:] != (1, 1)


def giving_last(graph: Graph, places: Collection[int]) -> Graph:
    """The graph with these outputs given channels last: batch, rows, columns, channels."""
    nodes, names = list(graph.nodes), Rewriter(graph)
    outputs = list(graph.outputs)
    for place in places:
        node = Node(_LAST, [outputs[place]], names.fresh(f"{outputs[place].name}.last"))
        nodes.append(node)
        outputs[place] = node.output
    return Graph(graph.inputs, outputs, nodes, graph.name)


def taking_last(graph: Graph, places: Collection[int]) -> Graph:
    """The graph with these inputs taken channels last."""
    names = Rewriter(graph)
    stands: dict[Value, Value] = {}
    inputs = list(graph.inputs)
    nodes: list[Node] = []
    for place in places:
        value = inputs[place]
        batch, channels, rows, columns = value.shape
        inputs[place] = Value(value.type.with_shape((batch, rows, columns, channels)), value.name)
        node = Node(_BACK, [inputs[place]], names.fresh(f"{value.name}.first"))
        nodes.append(node)
        stands[value] = node.output
    for node in graph.nodes:
        new = Node(node.op, _standing(node.inputs, stands), node.name, node.source)
        stands.update(zip(node.outputs, new.outputs, strict=True))
        nodes.append(new)
    return Graph(inputs, _standing(graph.outputs, stands), nodes, graph.name)


def _standing(values: Sequence[Value], stands: dict[Value, Value]) -> list[Value]:
    return [stands.get(value, value) for value in values]
