"""The rules of a legal graph: one table of functions, each from a graph to complaints.

Tests run :func:`check` after every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.ir import Graph, State, Stored, Value

Rule = Callable[[Graph], Iterator[str]]


def _names_are_unique(graph: Graph) -> Iterator[str]:
    for what, names in (
        ("nodes", [node.name for node in graph.nodes]),
        (
            "inputs, constants or states",
            [v.name for v in (*graph.inputs, *graph.constants, *graph.states)],
        ),
    ):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                yield f"two {what} are named {name!r}"
            seen.add(name)


def _operands_are_computed_before(graph: Graph) -> Iterator[str]:
    known: set[Value] = set(graph.inputs)
    for node in graph.nodes:
        for value in node.inputs:
            if value not in known and not isinstance(value, Stored):
                yield f"node {node.name!r} reads {value!r} before anything computes it"
        for value in node.outputs:
            if value in known:
                yield f"{value!r} is computed twice"
            if value.producer is not node:
                yield f"{value!r} does not name node {node.name!r} as its producer"
            known.add(value)
    for value in graph.outputs:
        if value not in known and not isinstance(value, Stored):
            yield f"the graph's output {value!r} is never computed"
    for state, value in graph.updates.items():
        if value not in known and not isinstance(value, Stored):
            yield f"{value!r}, which state {state.name!r} becomes, is never computed"


def _updates_fit(graph: Graph) -> Iterator[str]:
    for state, value in graph.updates.items():
        if not isinstance(state, State):
            yield f"{state!r} is updated, but is no state"
        elif state.type != value.type:
            yield f"state {state.name!r} is {state.type} and would become {value!r}"


def _bodies_have_no_states(graph: Graph) -> Iterator[str]:
    """A region takes states as operands: only whole graphs assign memory to them."""
    for node in graph.nodes:
        body = getattr(node.op, "body", None)
        if isinstance(body, Graph) and (body.states or body.updates):
            yield f"node {node.name!r}: its body has states, which must be the node's operands"


def _inputs_are_inputs(graph: Graph) -> Iterator[str]:
    for value in graph.inputs:
        if value.producer is not None or isinstance(value, Stored):
            yield f"the graph's input {value!r} is computed, a constant or a state"
    if len(set(graph.inputs)) != len(graph.inputs):
        yield "an input is listed twice"
    if graph.output_names is not None and len(graph.output_names) != len(graph.outputs):
        yield f"{len(graph.output_names)} output names for {len(graph.outputs)} outputs"


def _types_follow(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        try:
            types = node.op.infer(*(value.type for value in node.inputs))
        except GraphError as error:
            yield f"node {node.name!r}: {error}"
            continue
        if types != tuple(value.type for value in node.outputs):
            yield f"node {node.name!r}: outputs {node.outputs} are not of types {types}"


RULES: tuple[Rule, ...] = (
    _names_are_unique,
    _operands_are_computed_before,
    _inputs_are_inputs,
    _types_follow,
    _updates_fit,
    _bodies_have_no_states,
)


def complaints(graph: Graph) -> list[str]:
    """Everything that is wrong with a graph; empty for a legal one."""
    return [complaint for rule in RULES for complaint in rule(graph)]


def check_is_graph(graph: object) -> None:
    """Raises GraphError for anything but a graph."""
    if not isinstance(graph, Graph):
        raise GraphError(
            f"graph={graph!r:.80} is a {type(graph).__name__}; valid is a Graph, such as "
            "minidnn.layers.build.to_graph(network, shape) makes of layers"
        )


def check_own_shape(graph: Graph, shape: Any) -> None:
    """Raises GraphError unless ``shape`` equals the shapes that the graph's inputs have already; it
    is one shape, or a sequence or a dict of shapes."""
    shapes = {value.name: value.shape for value in graph.inputs}
    valid: list[Any] = [shapes, list(shapes.values()), tuple(shapes.values())]
    if len(shapes) == 1:
        valid += [tuple(*shapes.values()), list(*shapes.values())]
    if shape not in valid:
        raise GraphError(f"shape={shape!r}, but the graph's inputs have shapes {shapes}")


def check(graph: Graph) -> None:
    """Raises GraphError with all complaints, if there are any."""
    check_is_graph(graph)
    problems = complaints(graph)
    if problems:
        raise GraphError(f"graph {graph.name!r} is not legal:\n  " + "\n  ".join(problems))
