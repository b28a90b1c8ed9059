"""Copies of values from layout to layout."""

from __future__ import annotations

from dataclasses import replace

from ....fusion.planning import build_plan
from ....fusion.sequence import Schedule
from ....graph.expression import argument
from ....graph.ir import Graph, Node, Value
from ....graph.operators import Formula, Identity
from ....graph.types import BYTES, TensorType
from ..isa import Isa
from ..sequences.sequence import SequenceKernel, print_sequence
from ..tensor import Tensor


def copied(type: TensorType) -> Graph:
    """A region that gives its input."""
    value = Value(type, "source")
    op = Formula(argument(0), title="Copy", dtype=type.dtype, compute="float32")
    node = Node(op if type.dtype in BYTES else Identity(), [value], "copy")
    return Graph([value], node.outputs, [node])


def print_copy(
    type: TensorType, source: Tensor, result: Tensor, isa: Isa, channel: int = 0
) -> SequenceKernel:
    """Copies a value to where it lies otherwise: in another layout, or from ``channel`` on of a
    wider value."""
    _, _, rows, columns = type.plane
    plan, binding = build_plan(copied(type), Schedule(rows, columns))
    slots = tuple(replace(slot, channel=slot.channel - channel) for slot in binding.outputs)
    binding = replace(binding, outputs=slots)
    return print_sequence(plan, binding, [source], [result], isa)
