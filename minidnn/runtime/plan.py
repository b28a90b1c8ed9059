"""The plan: an optimized graph with a place in memory for every value.

The plan for inputs of other sizes has the same operators in the same order and layouts: no pass
runs again.  Whether two plans compute the same but for sizes is told by what describes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from minidnn._cached_property import cached_property
from minidnn.errors import OutOfMemoryError
from minidnn.fusion.region import Region
from minidnn.fusion.target import Target
from minidnn.graph.ir import Graph, Node, State, Stored, Value
from minidnn.graph.layout import Layout
from minidnn.graph.types import TensorType
from minidnn.memory import Annotations, Arena, Placement, plan_groups, plan_memory, storage_roots
from minidnn.passes.infrastructure import Context, Rewrite
from minidnn.passes.recompute import stored_bytes


@dataclass(frozen=True)
class Plan:
    """What a backend compiles: ordered regions, how values lie, and an arena with offsets."""

    graph: Graph
    annotations: Annotations
    arena: Arena
    target: Target
    #: What each thread needs for the groups of nodes that are computed image after image.
    group_arena: Arena
    #: How the graph came about, for explain().
    rewrites: Sequence[Rewrite] = ()
    notes: dict[str, str] = field(default_factory=dict)

    @cached_property
    def roots(self) -> dict[Value, Value]:
        """The value in whose storage each value lies."""
        return storage_roots(self.graph, self.annotations)

    def layout(self, value: Value) -> Layout:
        return self.annotations.layout(value)

    def check_fits(self, memory: int, where: str, wider: int = 1) -> None:
        """OutOfMemoryError if ``memory`` bytes, which are those of ``where``, cannot hold the
        values.

        Backends ask before they lower the plan, which takes longer the larger its images are.

        Args:
            wider: how many bytes each of a value's takes, as a backend has them.
        """
        largest = max(self.graph.values, key=lambda value: value.type.bytes)
        outside = {*self.graph.inputs, *self.graph.outputs}
        held = self.arena.bytes + sum(value.type.bytes for value in outside)
        needed = wider * max(held, largest.type.bytes)
        if needed > memory:
            raise OutOfMemoryError(
                f"{largest!r} takes {largest.type.bytes} bytes, and values that are needed at "
                f"once {needed}; {where} has {memory}"
            )

    def check_limit(self, limit: int | None) -> None:
        """OutOfMemoryError if weights, states and values take more than ``limit`` bytes."""
        values = self.arena.bytes + self.group_arena.bytes * self.target.device.workers
        stored = stored_bytes(self.graph)
        if limit is not None and stored + values > limit:
            batches = any(value.type.rank and value.shape[0] > 1 for value in self.graph.inputs)
            raise OutOfMemoryError(
                f"memory_limit={limit} bytes; weights and states take {stored} and values, as few "
                f"as were found, {values}: {stored + values} are needed"
                f"{'; a smaller batch needs less' if batches else ''}"
            )


def make_plan(graph: Graph, context: Context) -> Plan:
    """The plan of a graph to which all passes have been applied."""
    found = context.annotations
    arena, group_arena = plan_memory(graph, found), plan_groups(graph, found)
    rewrites, notes = tuple(context.rewrites), dict(context.notes)
    return Plan(graph, found, arena, context.target, group_arena, rewrites, notes)


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


#: What a region has beside what it computes.
_HOW = ("body", "schedule", "stack", "part", "parts")

#: A description of what is computed, equal for all sizes.
Described = list[Any]


def described(graph: Graph, arrays: Mapping[str, np.ndarray] | None = None) -> Described:
    """What a graph computes but for the sizes of its values: the operators, what they read, and the
    constants.

    With ``arrays`` a constant is the same as one of these of its name if it has the same numbers,
    else if it has the same name and type.
    """
    places: dict[Value, Any] = {value: i for i, value in enumerate(graph.inputs)}
    found: Described = [(value.type.rank, value.dtype) for value in graph.inputs]

    def place(value: Value) -> Any:
        if value in places or not isinstance(value, Stored):
            return places[value]
        known = isinstance(value, State) or arrays is None
        same = known or has_same_numbers(value.data, arrays.get(value.name))  # type: ignore[union-attr]
        return value.name, value.type, same

    for number, node in enumerate(graph.nodes):
        found.append((_operator(node.op), [place(value) for value in node.inputs]))
        places |= {value: (number, i) for i, value in enumerate(node.outputs)}
    return [*found, [place(value) for value in graph.outputs], graph.output_names]


def _operator(op: Any) -> Any:
    if not isinstance(op, Region):
        return op
    more = [getattr(op, each.name) for each in fields(op) if each.name not in _HOW]
    return type(op), more, described(op.body)


def has_same_numbers(one: np.ndarray, other: np.ndarray | None) -> bool:
    """Whether they have the same numbers, as those in one place of memory have."""
    if other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if one.ctypes.data == other.ctypes.data and one.strides == other.strides:
        return True
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def described_plan(plan: Plan) -> Described:
    """What a plan computes, and how its values lie, but for their sizes."""
    graph, found = plan.graph, plan.annotations
    number = {value: i for i, value in enumerate(graph.values)}
    layouts = [found.layout(value) for value in graph.values]
    places = [_placed(found, value, number) for value in graph.values]
    return [described(graph), layouts, places, [len(group) for group in found.groups]]


def _placed(found: Annotations, value: Value, number: Mapping[Value, int]) -> tuple[int, int]:
    at = found.place(value)
    return number[at.buffer], at.channel
