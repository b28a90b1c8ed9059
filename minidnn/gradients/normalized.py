"""What layers normalize row by row: whoever asks for gradients reads it again."""

from __future__ import annotations

from minidnn.graph.ir import Graph, Value
from minidnn.graph.operators import LayerNorm, Transpose


def is_sum_normalized(graph: Graph, value: Value) -> bool:
    """Whether a value is made of several of its size, element by element, and its rows are
    normalized, perhaps behind a move of its axes, as the sums in front of layers are.

    It is written, as the normalization and the next sum both read it; computed again, each sum
    would need all those before.
    """
    node = value.producer
    if node is None or node.op.kind != "elementwise":
        return False
    if sum(operand.type.size == value.type.size for operand in node.inputs) < 2:
        return False
    readers = graph.readers[value]
    moves = (reader for reader in readers if isinstance(reader.op, Transpose))
    behind = (reader for move in moves for reader in graph.readers[move.output])
    return any(isinstance(reader.op, LayerNorm) for reader in (*readers, *behind))
