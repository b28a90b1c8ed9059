"""reduce_precision: float32 values become values of the dtype in which the target keeps them.

Handles: every float32 input, constant and node output, at once; constants are rounded when they
are first needed, after normalizations were folded into them.
Refuses: graphs with states, which keep their dtypes.  Targets that keep float32 have nothing to do,
and other dtypes stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Operator
from minidnn.graph.operators import Formula
from minidnn.graph.types import rounded_to
from minidnn.passes.infrastructure import Context, Pass


def reduce_precision(graph: Graph, context: Context) -> Graph:
    """See the module."""
    dtype = context.target.storage
    if dtype is None or dtype == "float32" or graph.states:
        return graph
    if not context.allow(f"keep float32 values in {dtype}"):
        return graph
    known: dict[Value, Value] = {}

    def convert(old: Value) -> Value:
        """What stands for a value that no node of the graph computes, or that one did."""
        if old not in known:
            known[old] = _converted(old, dtype)
        return known[old]

    inputs = [convert(value) for value in graph.inputs]
    nodes = []
    for node in graph.nodes:
        operands = [convert(value) for value in node.inputs]
        new = Node(_converted_op(node.op, dtype), operands, node.name, node.source)
        known.update(zip(node.outputs, new.outputs, strict=True))
        nodes.append(new)
    outputs = [convert(value) for value in graph.outputs]
    return Graph(inputs, outputs, nodes, graph.name, graph.output_names)


def _converted_op(op: Operator, dtype: str) -> Operator:
    """An operator that gives float32 numbers gives those of the dtype."""
    if isinstance(op, Formula) and op.dtype == "float32":
        return replace(op, dtype=dtype)
    return op


def _converted(old: Value, dtype: str) -> Value:
    if old.dtype != "float32":
        return old
    type = replace(old.type, dtype=dtype)
    if isinstance(old, Constant):
        return Constant(type, old.name, _rounded(old, dtype))
    return Value(type, old.name)


def _rounded(constant: Constant, dtype: str) -> Callable[[], np.ndarray]:
    return lambda: rounded_to(dtype, constant.data)


REDUCE_PRECISION = Pass(
    "reduce_precision", reduce_precision, requires=("simplify", "fold_batch_norm")
)
