"""What a network, or a plan of it, computes but for the sizes of its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from minidnn.fusion.region import Region
from minidnn.graph.ir import Graph, State, Stored, Value
from minidnn.memory.annotations import Annotations
from minidnn.runtime.plan import Plan

__all__ = ["Described", "described", "described_plan", "has_same_numbers"]

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
