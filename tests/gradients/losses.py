"""Graphs with a loss, and their gradients on the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import minidnn as md
from minidnn.graph import operators as ops
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.types import FLOATS

Arrays = Sequence[np.ndarray]


def opened(graph: Graph) -> tuple[Graph, list[np.ndarray]]:
    """The graph with its floating-point constants as further inputs, and their arrays."""
    rewriter = Rewriter(graph)
    constants = [each for each in graph.constants if each.dtype in FLOATS]
    given = [Value(each.type, each.name) for each in constants]
    for constant, value in zip(constants, given, strict=True):
        rewriter.replace(constant, value)
    for node in graph.nodes:
        rewriter.keep(node)
    found = rewriter.finish()
    arrays = [each.data.astype(np.float64) for each in constants]
    return Graph((*graph.inputs, *given), found.outputs, found.nodes, graph.name), arrays


def with_loss(graph: Graph) -> Graph:
    """The graph with the value "loss": the sum of its outputs, each element times one of the
    further inputs, which are the gradients of the outputs."""
    inputs, nodes, totals = list(graph.inputs), list(graph.nodes), []
    for i, output in enumerate(graph.outputs):
        given = Value(output.type, f"given{i}")
        weighted = Node(ops.Mul(), (output, given), f"weighted{i}")
        whole = ops.Reduce("sum", tuple(range(output.type.rank)))
        total = Node(whole, (weighted.output,), f"total{i}")
        inputs.append(given)
        nodes += (weighted, total)
        totals.append(total.output)
    body = sum((argument(i) for i in range(1, len(totals))), start=argument(0))
    loss = Node(ops.Formula(body, len(totals)), totals, "loss")
    return Graph(inputs, graph.outputs, (*nodes, loss), graph.name)


def differentiable(graph: Graph) -> list[Value]:
    """The inputs of the graph that the value "loss" changes smoothly with."""
    found = {graph.node("loss").output}
    for node in reversed(graph.nodes):
        if found.intersection(node.outputs):
            found.update(value for value in node.inputs if value.dtype in FLOATS)
    return [v for v in graph.inputs if v in found and not v.name.startswith("given")]


def gradients(graph: Graph, of: Sequence[Value | str], inputs: Arrays) -> tuple[np.ndarray, ...]:
    """The gradients of the value "loss", in float64."""
    whole = md.gradient(graph, "loss", of)
    check(whole)
    return evaluate(whole, inputs, "float64")[len(graph.outputs) :]


def differences(
    graph: Graph, of: Sequence[Value], inputs: Arrays, directions: Arrays, step: float = 1e-6
) -> float:
    """What the value "loss" changes by along directions of inputs, by central differences."""
    only = Graph(graph.inputs, graph.node("loss").outputs, graph.nodes)

    def at(distance: float) -> float:
        moved = list(inputs)
        for value, direction in zip(of, directions, strict=True):
            place = graph.inputs.index(value)
            moved[place] = inputs[place] + distance * direction
        return float(evaluate(only, moved, "float64")[0])

    return (at(step) - at(-step)) / (2 * step)
