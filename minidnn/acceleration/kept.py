"""Layouts and dtypes of the values that a forward program keeps for its backward program.

In half precision all devices but the CPU compute images in channels-last layout (NHWC); only
tensors that PyTorch reads must be in PyTorch's layout.  A value whose channels are its last axis
already, like the output of a linear layer, stays in the order of its axes.  Each value is kept in
the layout in which it is computed, so that no transpose has to copy it.

A float32 value that the backward program only reads cast to half precision is kept in half
precision.
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

#: From NCHW to NHWC, and back.
_LAST = Transpose((0, 2, 3, 1))
_BACK = Transpose((0, 3, 1, 2))


def is_image(value: Value) -> bool:
    """Whether NCHW and NHWC differ for a value: it has four axes, channels and a spatial size."""
    return value.type.rank == 4 and value.shape[1] > 1 and value.type.plane[2:] != (1, 1)


def channels_last_values(graph: Graph) -> set[Value]:
    """The images (floating-point) that are computed in channels-last layout.

    Convolutions and windows give channels-last images; matrix products and attention give tensors
    in the order of their axes; a transpose between NCHW and NHWC changes the layout; every other
    operator, but a reshape, gives the layout of its largest operand.  Where that decides nothing,
    the layout that the readers of an image prefer does.
    """
    is_last: dict[Value, bool] = {}
    for node in graph.nodes:
        gives_last = _gives_last(node, is_last)
        if gives_last is not None:
            is_last.update((value, gives_last) for value in node.outputs if is_image(value))
    for node in reversed(graph.nodes):
        wants_last = _wants_last(node, is_last)
        if wants_last is not None:
            for value in filter(is_image, node.inputs):
                is_last.setdefault(value, wants_last)
    images = filter(is_image, graph.values)
    return {value for value in images if value.dtype in FLOATS and is_last.get(value, True)}


def _gives_last(node: Node, is_last: Mapping[Value, bool]) -> bool | None:
    """Whether a node's outputs are channels last; None if nothing decides it."""
    if isinstance(node.op, Transpose):
        return node.op == _BACK
    if isinstance(node.op, Reshaping):
        return None
    if (of_operator := _computes_channels_last(node)) is not None:
        return of_operator
    decided = [value for value in node.inputs if value in is_last]
    return is_last[max(decided, key=lambda value: value.type.size)] if decided else None


def _wants_last(node: Node, is_last: Mapping[Value, bool]) -> bool | None:
    """Whether a node prefers channels-last inputs; None if nothing decides it."""
    if isinstance(node.op, Transpose):
        return {_LAST: True, _BACK: False}.get(node.op)
    if isinstance(node.op, Reshaping):
        return None
    if (of_operator := _computes_channels_last(node)) is not None:
        return of_operator
    return next((is_last[value] for value in node.outputs if value in is_last), None)


def _computes_channels_last(node: Node) -> bool | None:
    """Whether an operator computes in channels-last layout; None if it takes any layout."""
    if isinstance(node.op, (Attention, AttentionGradient, Linear, MatMul)):
        return False
    return True if node.op.kind in ("contraction", "window") else None


def only_cast(graph: Graph, dtype: str) -> set[Value]:
    """The float32 inputs that a graph reads through casts to ``dtype`` alone."""
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
    """The graph with these outputs (by place) transposed to NHWC."""
    nodes, names = list(graph.nodes), Rewriter(graph)
    outputs = list(graph.outputs)
    for place in places:
        node = Node(_LAST, [outputs[place]], names.fresh(f"{outputs[place].name}.last"))
        nodes.append(node)
        outputs[place] = node.output
    return Graph(graph.inputs, outputs, nodes, graph.name)


def taking_last(graph: Graph, places: Collection[int]) -> Graph:
    """The graph with these inputs (by place) taken in NHWC."""
    names = Rewriter(graph)
    replacements: dict[Value, Value] = {}
    inputs = list(graph.inputs)
    nodes: list[Node] = []
    for place in places:
        value = inputs[place]
        batch, channels, rows, columns = value.shape
        inputs[place] = Value(value.type.with_shape((batch, rows, columns, channels)), value.name)
        node = Node(_BACK, [inputs[place]], names.fresh(f"{value.name}.first"))
        nodes.append(node)
        replacements[value] = node.output
    for node in graph.nodes:
        new = Node(node.op, _replaced_values(node.inputs, replacements), node.name, node.source)
        replacements.update(zip(node.outputs, new.outputs, strict=True))
        nodes.append(new)
    return Graph(inputs, _replaced_values(graph.outputs, replacements), nodes, graph.name)


def _replaced_values(values: Sequence[Value], replacements: dict[Value, Value]) -> list[Value]:
    return [replacements.get(value, value) for value in values]
