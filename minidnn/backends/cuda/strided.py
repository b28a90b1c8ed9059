"""Kernels of element-wise operators that broadcast, over values of any rank that lie as NCHW, or in
a slice of a join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...graph.expression import linearize
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise
from ...graph.types import HALVES
from ...kernels.ops import elementwise
from ...kernels.ops.pitched import Pitched
from ...memory import Annotations
from .kernels import SCHEDULE, Launch
from .narrow import narrowed
from .whole import is_whole

THREADS = 256


@dataclass(frozen=True)
class Strided:
    """Element ``i`` lies at ``offset + sum(i * strides)`` of what the pointer points to."""

    dtype: str
    strides: tuple[int, ...]
    offset: int = 0


def strided_of(annotations: Annotations, value: Value) -> Strided:
    """How a value lies whose layout is NCHW."""
    place = annotations.within(value)
    offset = place.channel * prod(value.shape[2:])
    return Strided(value.dtype, _dense(place.buffer.shape), offset)


def pitched(annotations: Annotations, value: Value) -> Pitched:
    """How a value lies whose layout is NCHW, as kernels that are described once have it."""
    lies = strided_of(annotations, value)
    return Pitched(value.type, lies.strides[0] if lies.strides else 1, lies.offset)


def print_broadcast(annotations: Annotations, node: Node) -> Launch:
    """The kernel of an element-wise node; its pointers are the operands, then the output."""
    op, out = node.op, node.output
    assert isinstance(op, Elementwise)
    tensors = len(node.inputs) - op.channel_count
    given = [pitched(annotations, value) for value in node.inputs[:tensors]]
    over_channels = (value.type for value in node.inputs[tensors:])
    ones = (1,) * (out.type.rank - 2)
    given += [Pitched.dense(type.with_shape(type.shape + ones)) for type in over_channels]
    whole = is_whole(op.computed_in([x.type.dtype for x in given]))
    code = linearize(op.expression())
    if out.dtype in HALVES and not whole:
        code = narrowed(code)
    made, number = pitched(annotations, out), "int64" if whole else "float32"
    return Launch.of(elementwise.lower(code, given, made, number, SCHEDULE))


def element_of(index: str, shape: Sequence[int], x: Strided) -> str:
    """Where element ``index`` of the dense value lies; samples may lie apart."""
    sample = prod(shape[1:])
    if not shape or x.strides[0] == sample or shape[0] == 1:
        return index if not x.offset else f"{index} + {x.offset}"
    return f"{index} / {sample} * {x.strides[0]} + {index} % {sample} + {x.offset}"


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
