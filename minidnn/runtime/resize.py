"""The plan of a network for inputs of other sizes, from one that there is: by the same operators in
the same order and layouts.  No pass runs again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minidnn.fusion.region import Region
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.types import TensorType
from minidnn.memory.annotations import Annotations, Placement
from minidnn.memory.arena import plan_groups, plan_memory
from minidnn.runtime.plan import Plan

__all__ = ["resized"]


def resized(plan: Plan, shapes: Sequence[tuple[int, ...]]) -> Plan:
    """The plan for inputs of these shapes.

    That it is the plan of the same network is for the caller to know.  GraphError if an operator
    does not take what it is given then.
    """
    graph = plan.graph
    types = [v.type.with_shape(shape) for v, shape in zip(graph.inputs, shapes, strict=True)]
    values: dict[Value, Value] = {}
    new = _retyped(graph, types, values)
    nodes = dict(zip(graph.nodes, new.nodes, strict=True))
    before = plan.annotations
    found = Annotations(
        {values.get(value, value): layout for value, layout in before.layouts.items()},
        {
            values.get(value, value): Placement(values.get(at.buffer, at.buffer), at.channel)
            for value, at in before.placements.items()
        },
        tuple(tuple(nodes[node] for node in group) for group in before.groups),
    )
    arena, group_arena = plan_memory(new, found), plan_groups(new, found)
    return replace(plan, graph=new, annotations=found, arena=arena, group_arena=group_arena)


def _retyped(graph: Graph, types: Sequence[TensorType], values: dict[Value, Value]) -> Graph:
    """The graph on inputs of these types; ``values`` gets the new value for each old one."""
    inputs = [Value(type, v.name) for v, type in zip(graph.inputs, types, strict=True)]
    values.update(zip(graph.inputs, inputs, strict=True))
    nodes = []
    for node in graph.nodes:
        given = [values.get(value, value) for value in node.inputs]
        op = node.op
        if isinstance(op, Region):
            op = replace(op, body=_retyped(op.body, [value.type for value in given], {}))
        new = Node(op, given, node.name, node.source)
        values.update(zip(node.outputs, new.outputs, strict=True))
        nodes.append(new)
    outputs = [values.get(value, value) for value in graph.outputs]
    return Graph(inputs, outputs, nodes, graph.name, graph.output_names)
