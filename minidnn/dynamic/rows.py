"""Analysis of whether a network computes the rows of a batch independently of each other.

If it does, a batch of any size can be computed in parts.  The analysis compares the graphs for two
sizes of the batch, node by node.  A value whose first axis grows with the batch has *rows*; row
``i`` of it must follow from row ``i`` of the inputs alone, by the same operators with the same
attributes and the same constants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from minidnn.dynamic.split import RowWise
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, State, Stored, Value
from minidnn.graph.operator import Elementwise, Operator, Windowed
from minidnn.graph.types import TensorType


def row_wise(small: Graph, large: Graph, inputs: Collection[int]) -> RowWise | str:
    """Which inputs and outputs of a network have rows, or why its rows depend on each other.

    ``small`` and ``large`` are its graphs for two sizes of the batch, and ``inputs`` the numbers of
    the inputs that have rows.
    """
    walk = _compared_graphs(small, large, inputs)
    if isinstance(walk, str):
        return walk
    return RowWise(
        tuple(place in inputs for place in range(len(large.inputs))),
        tuple(value in walk.rows for value in large.outputs),
    )


def other_batches(
    small: Graph, large: Graph, inputs: Collection[int]
) -> Callable[[int], Graph] | str:
    """A function that returns the graph for any number of rows, from the graphs for two; or why
    there is none, as :func:`row_wise` says it.

    The caller knows that the network depends on the number of rows in no other way than these two
    graphs show.
    """
    walk = _compared_graphs(small, large, inputs)
    return walk if isinstance(walk, str) else partial(_of_rows, large, walk.rows)


def _of_rows(graph: Graph, rows_of: Collection[Value], rows: int) -> Graph:
    """The graph with another number of rows; ``rows_of`` are its values that have rows."""
    new: dict[Value, Value] = {}
    for value in graph.inputs:
        shape = (rows, *value.shape[1:]) if value in rows_of else value.shape
        new[value] = Value(TensorType(shape, value.dtype), value.name)
    nodes = []
    for node in graph.nodes:
        operands = [new.get(value, value) for value in node.inputs]
        if any(value in rows_of for value in node.outputs):
            resized = Node(_with_row_count(node.op, rows), operands, node.name, node.source)
        else:
            resized = node.on(operands)
        nodes.append(resized)
        new.update(zip(node.outputs, resized.outputs, strict=True))
    outputs = [new.get(value, value) for value in graph.outputs]
    return Graph([new[v] for v in graph.inputs], outputs, nodes, graph.name, graph.output_names)


def _compared_graphs(small: Graph, large: Graph, inputs: Collection[int]) -> _Walk | str:
    """The comparison of both graphs, or why their rows depend on each other."""
    if large.updates:
        return "every run updates its states"
    if [len(small.nodes), len(small.inputs)] != [len(large.nodes), len(large.inputs)]:
        return "it has other nodes for other sizes of the batch"
    walk = _Walk()
    for place, (small_value, large_value) in enumerate(
        zip(small.inputs, large.inputs, strict=True)
    ):
        if (reason := walk.add(small_value, large_value, rows=place in inputs)) is not None:
            return f"input {large_value.name!r} {reason}"
    for small_node, large_node in zip(small.nodes, large.nodes, strict=True):
        if (reason := walk.node(small_node, large_node)) is not None:
            return f"{large_node.name} ({large_node.op.name}, {large_node.source}) {reason}"
    pairs = list(zip(small.outputs, large.outputs, strict=True))
    if not all(walk.is_twin(small_value, large_value) for small_value, large_value in pairs):
        return "its outputs are others for other sizes of the batch"
    return walk


class _Walk:
    """Compares the graphs for two sizes of a batch, node by node.

    Parameters ``one`` belong to the smaller graph, ``other`` to the larger one.
    """

    def __init__(self) -> None:
        #: Values of the larger graph that have rows.
        self.rows: set[Value] = set()
        #: Values of the smaller graph, by those of the larger one.
        self._twins: dict[Value, Value] = {}

    def add(self, one: Value, other: Value, rows: bool) -> str | None:
        """Records two values as twins, with ``rows`` or without; returns why they cannot be."""
        self._twins[other] = one
        if rows:
            self.rows.add(other)
            same = one.type.rank == other.type.rank >= 1 and one.shape[1:] == other.shape[1:]
        else:
            same = one.shape == other.shape
        if same and one.dtype == other.dtype:
            return None
        return f"is {one.type} for one size of the batch and {other.type} for another"

    def is_twin(self, one: Value, other: Value) -> bool:
        """Whether two values are recorded as twins, or are the same constant or state."""
        if isinstance(other, Stored):
            return isinstance(one, Stored) and _is_same(one, other)
        return self._twins.get(other) is one

    def node(self, one: Node, other: Node) -> str | None:
        """Compares two nodes, and records their results as twins; returns why they differ, or why
        their rows depend on each other."""
        if type(one.op) is not type(other.op) or len(one.inputs) != len(other.inputs):
            return "is another operator for another size of the batch"
        for first, second in zip(one.inputs, other.inputs, strict=True):
            if not self.is_twin(first, second):
                return f"reads {second!r}, which is another for another size of the batch"
        op = other.op
        has_rows = any(value in self.rows for value in other.inputs)
        if has_rows:
            rule = next((rule for kind, rule in _RULES if isinstance(op, kind)), None)
            if rule is None:
                return "is not known to keep rows apart"
            if (reason := rule(op, other.inputs, self.rows)) is not None:
                return reason
        elif isinstance(op, ops.Expand):  # a value without rows may be broadcast to rows
            (value,) = other.inputs
            padded = (1,) * (len(op.shape) - value.type.rank) + value.shape
            has_rows = one.op != op and padded[0] == 1
        if (_with_row_count(one.op, 0) if has_rows else one.op) != (
            _with_row_count(op, 0) if has_rows else op
        ):
            return "has other attributes for another size of the batch"
        for first, second in zip(one.outputs, other.outputs, strict=True):
            if (reason := self.add(first, second, has_rows)) is not None:
                return reason
            if has_rows and first.shape[0] == second.shape[0]:
                return f"gives {second!r}, which has as many rows for any size of the batch"
        return None


def _is_same(one: Stored, other: Stored) -> bool:
    """Whether two constants, or two states, are the same."""
    if type(one) is not type(other) or one.type != other.type:
        return False
    if isinstance(other, State):
        return one.name == other.name
    a, b = one.data, other.data
    if a is b or (a.ctypes.data == b.ctypes.data and a.strides == b.strides):
        return True
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def _with_row_count(op: Operator, rows: int) -> Operator:
    """An operator with another number of rows in its attributes, if these have one."""
    if isinstance(op, (ops.View, ops.Expand)) and op.shape:
        return replace(op, shape=(rows, *op.shape[1:]))
    if isinstance(op, ops.Slice) and op.sizes:
        return replace(op, sizes=(rows, *op.sizes[1:]))
    return op


#: Returns why an operator mixes rows of its operands, given which values have rows; None if it
#: keeps them independent.
_Rule = Callable[[Operator, Sequence[Value], Collection[Value]], str | None]

_MIXES = "mixes rows"
_PLACES = "reorders rows"
_EACH = "has an operand that is another for each row"


def _elementwise(op: Operator, given: Sequence[Value], rows: Collection[Value]) -> str | None:
    """Rows must be the first axis of the result, and other operands the same for each of them."""
    assert isinstance(op, Elementwise)
    tensors = given[: len(given) - op.channel_count]
    if any(value in rows for value in given[len(tensors) :]):
        return "has a vector of channels with rows"
    rank = max(value.type.rank for value in tensors)
    for value in tensors:
        if value in rows and value.type.rank != rank:
            return "repeats rows along another axis"
        if value not in rows and value.type.rank == rank and value.shape[0] != 1:
            return _EACH
    return None


def _all(op: Operator, given: Sequence[Value], rows: Collection[Value]) -> str | None:
    """All operands must have rows."""
    return None if all(value in rows for value in given) else _EACH


def _first(op: Operator, given: Sequence[Value], rows: Collection[Value]) -> str | None:
    """The first operand must have rows, and weights none."""
    if given[0] not in rows or any(value in rows for value in given[1:]):
        return "has weights with rows"
    return None


def _linear(op: Operator, given: Sequence[Value], rows: Collection[Value]) -> str | None:
    return _MIXES if given[0].type.rank < 2 else _first(op, given, rows)


def _matmul(op: Operator, given: Sequence[Value], rows: Collection[Value]) -> str | None:
    """Rows must be batches of matrices, or rows of the left matrix."""
    rank = max(value.type.rank for value in given)
    for place, value in enumerate(given):
        if value in rows:
            if value.type.rank != rank or (rank == 2 and place == 1):
                return _MIXES
        elif value.type.rank == rank > 2 and value.shape[0] != 1:
            return _EACH
        elif rank == 2 and place == 0:
            return _MIXES
    return None


def _layer_norm(op: Operator, given: Sequence[Value], rows: Collection[Value]) -> str | None:
    assert isinstance(op, ops.LayerNorm)
    return _MIXES if op.axes >= given[0].type.rank else _first(op, given, rows)


def _concat(op: Operator, given: Sequence[Value], rows: Collection[Value]) -> str | None:
    assert isinstance(op, ops.Concat)
    return _MIXES if op.axis % given[0].type.rank == 0 else _all(op, given, rows)


def _gather(op: Operator, given: Sequence[Value], rows: Collection[Value]) -> str | None:
    """Rows of the data must not be the gathered axis; rows of indices must index the first axis."""
    assert isinstance(op, ops.Gather)
    x, indices = given
    axis = op.axis % x.type.rank
    if x in rows:
        return _PLACES if indices in rows or axis == 0 else None
    return None if axis == 0 else _PLACES


def _if(keeps: Callable[[Any, Value], bool], otherwise: str) -> _Rule:
    """The rule of operators that keep rows apart if ``keeps`` holds for the operator and its first
    operand."""
    return lambda op, given, rows: None if keeps(op, given[0]) else otherwise


#: The rule of each kind of operators; others are not known to keep rows independent.
_RULES: tuple[tuple[type | tuple[type, ...], _Rule], ...] = (
    (Elementwise, _elementwise),
    (Windowed, _all),
    ((ops.AdaptiveAvgPool2d, ops.TakeChannels, ops.Unfold2d, ops.Reshape), _all),
    (ops.Conv2d, _first),
    (ops.GroupNorm, _first),
    (ops.Linear, _linear),
    (ops.MatMul, _matmul),
    (
        (ops.Softmax, ops.LogSoftmax, ops.ArgMax),
        _if(lambda op, x: op.dim % x.type.rank != 0, _MIXES),
    ),
    (ops.Reduce, _if(lambda op, x: 0 not in op.dims, _MIXES)),
    (ops.LayerNorm, _layer_norm),
    (ops.Concat, _concat),
    (ops.Flatten, _if(lambda op, x: op.start_dim % x.type.rank != 0, _MIXES)),
    (ops.View, _if(lambda op, x: op.shape[:1] == x.shape[:1], _MIXES)),
    (ops.Transpose, _if(lambda op, x: op.dims[0] == 0, _PLACES)),
    (
        ops.Slice,
        _if(lambda op, x: (op.starts[0], op.sizes[0], op.steps[0]) == (0, x.shape[0], 1), _PLACES),
    ),
    # An Expand must not add axes before the rows.
    (ops.Expand, _if(lambda op, x: len(op.shape) == x.type.rank, _PLACES)),
    (ops.Pad, _if(lambda op, x: not op.before[0] and not op.after[0], _PLACES)),
    (ops.Take, _if(lambda op, x: op.indices[0] is None, _PLACES)),
    (ops.Gather, _gather),
)
