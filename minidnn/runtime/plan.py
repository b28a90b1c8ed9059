"""The plan: an optimized graph with the layout and the address (arena and offset) of every value.

The compiler makes it, and a backend lowers it to a program.  The plan for inputs of other sizes has
the same operators in the same order and layouts: no pass runs again.  Two plans compute the same,
sizes aside, if their descriptions (:func:`describe_plan`) are equal.
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
from minidnn.memory import Annotations, Arena, BufferView, plan_groups, plan_memory, storage_roots
from minidnn.passes.infrastructure import Context, Rewrite
from minidnn.passes.recompute import stored_bytes


@dataclass(frozen=True)
class Plan:
    """What a backend compiles: ordered regions, layouts of values, and an arena with offsets."""

    graph: Graph
    annotations: Annotations
    arena: Arena
    target: Target
    #: The memory that each thread needs for groups of nodes that are computed image after image.
    group_arena: Arena
    #: The rewrites that passes made, for explain().
    rewrites: Sequence[Rewrite] = ()
    notes: dict[str, str] = field(default_factory=dict)

    @cached_property
    def roots(self) -> dict[Value, Value]:
        """For each value the one whose storage holds it."""
        return storage_roots(self.graph, self.annotations)

    def layout(self, value: Value) -> Layout:
        return self.annotations.layout(value)

    def check_fits(self, memory: int, where: str, wider: int = 1) -> None:
        """OutOfMemoryError if ``memory`` bytes, the size of the memory ``where``, cannot hold the
        values.

        Backends call this before they lower the plan, which takes longer the larger its images are.

        Args:
            wider: how many bytes the backend needs for each byte of a value: more than 1 if it
                computes in a wider dtype.
        """
        largest = max(self.graph.values, key=lambda value: value.type.bytes)
        outside = {*self.graph.inputs, *self.graph.outputs}
        at_once = self.arena.bytes + sum(value.type.bytes for value in outside)
        needed = wider * max(at_once, largest.type.bytes)
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
    annotations = context.annotations
    arena, group_arena = plan_memory(graph, annotations), plan_groups(graph, annotations)
    rewrites, notes = tuple(context.rewrites), dict(context.notes)
    return Plan(graph, annotations, arena, context.target, group_arena, rewrites, notes)


def resized(plan: Plan, shapes: Sequence[tuple[int, ...]]) -> Plan:
    """The plan for inputs of these shapes.

    The caller knows that it is a plan of the same network.  GraphError if an operator does not
    accept the new shapes of its operands.
    """
    graph = plan.graph
    types = [v.type.with_shape(shape) for v, shape in zip(graph.inputs, shapes, strict=True)]
    values: dict[Value, Value] = {}
    new = _retyped(graph, types, values)
    nodes = dict(zip(graph.nodes, new.nodes, strict=True))
    old = plan.annotations
    annotations = Annotations(
        {values.get(value, value): layout for value, layout in old.layouts.items()},
        {
            values.get(value, value): BufferView(values.get(at.buffer, at.buffer), at.channel)
            for value, at in old.placements.items()
        },
        tuple(tuple(nodes[node] for node in group) for group in old.groups),
    )
    arena, group_arena = plan_memory(new, annotations), plan_groups(new, annotations)
    return replace(plan, graph=new, annotations=annotations, arena=arena, group_arena=group_arena)


def _retyped(graph: Graph, types: Sequence[TensorType], values: dict[Value, Value]) -> Graph:
    """The graph on inputs of these types; adds the new value of each old one to ``values``."""
    inputs = [Value(type, v.name) for v, type in zip(graph.inputs, types, strict=True)]
    values.update(zip(graph.inputs, inputs, strict=True))
    nodes = []
    for node in graph.nodes:
        operands = [values.get(value, value) for value in node.inputs]
        op = node.op
        if isinstance(op, Region):
            op = replace(op, body=_retyped(op.body, [value.type for value in operands], {}))
        new = Node(op, operands, node.name, node.source)
        values.update(zip(node.outputs, new.outputs, strict=True))
        nodes.append(new)
    outputs = [values.get(value, value) for value in graph.outputs]
    return Graph(inputs, outputs, nodes, graph.name, graph.output_names)


#: The fields of a region that do not say what it computes, and its body, described separately.
_HOW = ("body", "schedule", "stack", "part", "parts")

#: A description of a computation, equal for all sizes.
Described = list[Any]


def described(graph: Graph, arrays: Mapping[str, np.ndarray] | None = None) -> Described:
    """Describes what a graph computes, sizes of values aside: operators, operands, constants.

    Constants are described by name and type, and with ``arrays`` also by whether they have the
    numbers of the array of their name.
    """
    names: dict[Value, Any] = {value: i for i, value in enumerate(graph.inputs)}
    description: Described = [(value.type.rank, value.dtype) for value in graph.inputs]

    def name(value: Value) -> Any:
        if value in names or not isinstance(value, Stored):
            return names[value]
        known = isinstance(value, State) or arrays is None
        same = known or has_same_numbers(value.data, arrays.get(value.name))  # type: ignore[union-attr]
        return value.name, value.type, same

    for number, node in enumerate(graph.nodes):
        description.append((_operator(node.op), [name(value) for value in node.inputs]))
        names |= {value: (number, i) for i, value in enumerate(node.outputs)}
    return [*description, [name(value) for value in graph.outputs], graph.output_names]


def _operator(op: Any) -> Any:
    if not isinstance(op, Region):
        return op
    fields_of_region = [getattr(op, each.name) for each in fields(op) if each.name not in _HOW]
    return type(op), fields_of_region, described(op.body)


def has_same_numbers(one: np.ndarray, other: np.ndarray | None) -> bool:
    """Whether two arrays have the same bits; arrays at the same address need no comparison."""
    if other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if one.ctypes.data == other.ctypes.data and one.strides == other.strides:
        return True
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def describe_plan(plan: Plan) -> Described:
    """Describes what a plan computes, with the layouts and placements of values, sizes aside."""
    graph, annotations = plan.graph, plan.annotations
    number = {value: i for i, value in enumerate(graph.values)}
    layouts = [annotations.layout(value) for value in graph.values]
    placements = [_placed(annotations, value, number) for value in graph.values]
    return [described(graph), layouts, placements, [len(group) for group in annotations.groups]]


def _placed(annotations: Annotations, value: Value, number: Mapping[Value, int]) -> tuple[int, int]:
    placement = annotations.place(value)
    return number[placement.buffer], placement.channel
