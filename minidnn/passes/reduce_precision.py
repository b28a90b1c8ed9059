"""reduce_precision: float32 values become values of the dtype in which the target keeps them.

Handles: every float32 input, constant and node output, at once; constants are rounded when they
are first needed, after normalizations were folded into them.
Refuses: graphs with states, which keep their dtypes, and those that say themselves which values are
in half precision.  Targets that keep float32 have nothing to do, and other dtypes stay.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import numpy as np

from minidnn.graph.ir import Constant, Graph, Node, State, Stored, Value
from minidnn.graph.operators import Formula
from minidnn.graph.types import rounded_to
from minidnn.passes.infrastructure import Context, Pass


def reduce_precision(graph: Graph, context: Context) -> Graph:
    """See the module."""
    dtype = context.target.storage
    if dtype is None or dtype == "float32" or graph.states or context.mixed:
        return graph
    if not context.allow(f"keep float32 values in {dtype}"):
        return graph
    return in_dtype(graph, {"float32"}, dtype)


def in_dtype(graph: Graph, given: Container[str], dtype: str) -> Graph:
    """The graph with ``dtype`` in the place of those ``given``, which are floating-point ones:
    inputs, constants, states, node outputs and what formulas give."""
    known: dict[Value, Value] = {}

    def convert(old: Value) -> Value:
        """What stands for a value that no node of the graph computes, or that one did."""
        if old not in known:
            known[old] = _converted(old, dtype) if old.dtype in given else old
        return known[old]

    inputs = [convert(value) for value in graph.inputs]
    nodes = []
    for node in graph.nodes:
        operands = [convert(value) for value in node.inputs]
        op = node.op
        if isinstance(op, Formula) and op.dtype is not None and op.dtype in given:
            op = replace(op, dtype=dtype)
        new = Node(op, operands, node.name, node.source)
        known.update(zip(node.outputs, new.outputs, strict=True))
        nodes.append(new)
    outputs = [convert(value) for value in graph.outputs]
    updates: Any = {convert(state): convert(value) for state, value in graph.updates.items()}
    return Graph(inputs, outputs, nodes, graph.name, graph.output_names, updates=updates)


def _converted(old: Value, dtype: str) -> Value:
    type = replace(old.type, dtype=dtype)
    if isinstance(old, (Constant, State)):
        return old.__class__(type, old.name, _rounded(old, dtype))
    return Value(type, old.name)


def _rounded(stored: Stored, dtype: str) -> Callable[[], np.ndarray]:
    return lambda: rounded_to(dtype, stored.data)


REDUCE_PRECISION = Pass(
    "reduce_precision", reduce_precision, requires=("simplify", "fold_batch_norm")
)
