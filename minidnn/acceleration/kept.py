"""How values lie, and in which dtype, between a program forwards and the one backwards.

In half precision devices compute images with their channels last; only what others read has to lie
as PyTorch has it.  A value whose channels are its last axis already, as one that a linear layer
gives, lies as its axes are.  Each is kept as it lies where it is made, so that nothing has to be
copied for it.

A value that is in float32, and that the program backwards reads in half precision alone, is kept
in that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Reshaping
from minidnn.graph.operators import (
    Attention,
    AttentionGradient,
    Formula,
    Linear,
    MatMul,
    Transpose,
)
from minidnn.graph.types import FLOATS

_LAST = Transpose((0, 2, 3, 1))
_BACK = Transpose((0, 3, 1, 2))


def is_image(value: Value) -> bool:
    """Whether it makes a difference where a value's channels lie."""
    return value.type.rank == 4 and value.shape[1] > 1 and value.type.plane[2:] != (1, 1)


def lying_last(graph: Graph) -> set[Value]:
    """The images that lie with the second axis last where they are made.

    Convolutions and windows give images so, products of matrices as their axes are; moving the
    channels makes the one of the other; all else gives what it is given.  Where that says nothing,
    what reads an image does, by what it is given best.
    """
    found: dict[Value, bool] = {}
    for node in graph.nodes:
        lies = _lies(node, found)
        if lies is not None:
            found.update((value, lies) for value in node.outputs if is_image(value))
    for node in reversed(graph.nodes):
        wanted = _wanted(node, found)
        if wanted is not None:
            for value in filter(is_image, node.inputs):
                found.setdefault(value, wanted)
    images = filter(is_image, graph.values)
    return {value for value in images if value.dtype in FLOATS and found.get(value, True)}


def _lies(node: Node, found: Mapping[Value, bool]) -> bool | None:
    """Whether what a node gives lies channels last, if anything says so."""
    if isinstance(node.op, Transpose):
        return node.op == _BACK
    if isinstance(node.op, Reshaping):
        return None
    if (own := _of_operator(node)) is not None:
        return own
    known = [value for value in node.inputs if value in found]
    return found[max(known, key=lambda value: value.type.size)] if known else None


def _wanted(node: Node, found: Mapping[Value, bool]) -> bool | None:
    """Whether what a node reads should lie channels last, if anything says so."""
    if isinstance(node.op, Transpose):
        return {_LAST: True, _BACK: False}.get(node.op)
    if isinstance(node.op, Reshaping):
        return None
    if (own := _of_operator(node)) is not None:
        return own
    return next((found[value] for value in node.outputs if value in found), None)


def _of_operator(node: Node) -> bool | None:
    if isinstance(node.op, (Attention, AttentionGradient, Linear, MatMul)):
        return False
    return True if node.op.kind in ("contraction", "window") else None


def only_cast(graph: Graph, dtype: str) -> set[Value]:
    """The inputs in float32 that a graph reads in ``dtype`` alone."""
    return {
        value
        for value in graph.inputs
        if value.dtype == "float32"
        and value not in graph.results
        and all(_casts(reader, dtype) for reader in graph.readers[value])
    }


def _casts(node: Node, dtype: str) -> bool:
    op = node.op
    return isinstance(op, Formula) and op.title == "Cast" and node.output.dtype == dtype


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
