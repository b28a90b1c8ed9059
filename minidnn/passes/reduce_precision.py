"""reduce_precision: float32 values become values of the dtype in which the target keeps them.

Handles: every float32 input, constant and node output, at once; constants are rounded when they
are first needed, after normalizations were folded into them.
Where the target keeps inputs and outputs as they are, :mod:`.store_halves` says what is stored so.
Refuses: graphs with states, which keep their dtypes, and those that say themselves which values are
in half precision.  Targets that keep float32 have nothing to do, and other dtypes stay.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import numpy as np

from minidnn.fusion.functions import LayerFunction
from minidnn.graph.expression import argument
from minidnn.graph.ir import Constant, Graph, Node, State, Stored, Value
from minidnn.graph.operators import Attention, AttentionGradient, Formula
from minidnn.graph.types import rounded_to
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.store_halves import stored_in


def reduce_precision(graph: Graph, context: Context) -> Graph:
    """See the module."""
    dtype = context.target.storage
    if dtype is None or dtype == "float32" or graph.states or context.mixed:
        return graph
    if not context.allow(f"keep float32 values in {dtype}"):
        return graph
    if context.target.keeps_interface:
        return stored_in(graph, dtype, context.target)
    return in_dtype(graph, {"float32"}, dtype)


def in_dtype(graph: Graph, given: Container[str], dtype: str) -> Graph:
    """The graph with ``dtype`` in the place of those ``given``, which are floating-point ones:
    inputs, constants, states, node outputs and what formulas give.
    """
    known: dict[Value, Value] = {}
    names = {value.name for value in graph.values} | {node.name for node in graph.nodes}
    nodes: list[Node] = []
    #: Logarithms stay as they are.
    exact = {node.inputs[4] for node in graph.nodes if isinstance(node.op, AttentionGradient)}

    def cast(value: Value, to: str, source: str) -> Value:
        """A value in another dtype, by a node of its own."""
        name = f"{value.name}.{to}"
        while name in names:
            name += "."
        names.add(name)
        op = Formula(argument(0), title="Cast", dtype=to, compute="float32")
        nodes.append(Node(op, [value], name, source))
        return nodes[-1].output

    def convert(old: Value) -> Value:
        """What stands for a value that no node of the graph computes, or that one did."""
        if old not in known:
            stays = old.dtype not in given or old in exact
            known[old] = old if stays else _converted(old, dtype)
        return known[old]

    inputs = [convert(value) for value in graph.inputs]
    for node in graph.nodes:
        op = node.op
        if isinstance(op, LayerFunction):
            operands = [
                convert(value)
                if op.narrows(value.type) or value.dtype not in given
                else value
                if isinstance(value, Constant)
                else cast(convert(value), value.dtype, node.name)
                for value in node.inputs
            ]
        else:
            operands = [convert(value) for value in node.inputs]
        if isinstance(op, Formula) and op.dtype is not None and op.dtype in given:
            op = replace(op, dtype=dtype)
        new = Node(op, operands, node.name, node.source)
        nodes.append(new)
        for value, made in zip(node.outputs, new.outputs, strict=True):
            wide = value.dtype in given and made.dtype == value.dtype
            wide = wide and not (isinstance(op, Attention) and value is node.outputs[1])
            known[value] = cast(made, dtype, node.name) if wide and dtype != made.dtype else made
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
