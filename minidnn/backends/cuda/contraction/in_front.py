"""What makes the gradient that a gradient of a convolution reads, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ....fusion.plan import Binding
from ....fusion.region import FusedSequence
from ....fusion.sequence import Schedule
from ....graph.ir import Graph, Value
from ....graph.layout import CHANNELS_LAST
from ....graph.types import TensorType
from ..kernels import Launch
from ..machine import Machine
from ..sequence.suit import print_region
from ..tensor import Tensor, tensor_of
from .behind import Operators, numbered, rebuilt

MOST_IN_FRONT = 2
"""Tensors: of more, too few pixels are on their way to a multiprocessor at once."""


@dataclass(frozen=True)
class InFront:
    """Point-wise operators on tensors and vectors, whose last result a contraction reads.

    Attributes:
        read: the types of values that are read, tensors first.
        operators: each with the numbers of the values that it reads.
        tensors: how the tensors lie.
    """

    read: tuple[TensorType, ...]
    operators: Operators
    tensors: tuple[Tensor, ...]

    @property
    def vectors(self) -> tuple[str, ...]:
        """The dtypes of the other values that are read."""
        return tuple(type.dtype for type in self.read[len(self.tensors) :])


def in_front(body: Graph, lies: Callable[[Value], Tensor]) -> tuple[InFront, list[Value]]:
    """Nodes that make their only result of tensors of its shape and of vectors; and what they read,
    tensors first."""
    shape = body.outputs[0].shape
    read = sorted(body.inputs, key=lambda value: value.shape != shape)
    _, operators = numbered(read, body.nodes)
    tensors = tuple(lies(value) for value in read if value.shape == shape)
    return InFront(tuple(value.type for value in read), operators, tensors), read


@cache
def region_of(front: InFront) -> FusedSequence:
    """The nodes again; operands are in the order of ``read``."""
    values, nodes = rebuilt(front.read, front.operators)
    _, _, rows, columns = values[-1].type.plane
    body = Graph(values[: len(front.read)], values[-1:], nodes, "in front")
    return FusedSequence(body, Schedule(rows, columns))


@cache
def launch_of(front: InFront, made: Tensor, machine: Machine) -> Launch:
    """The kernel that computes it by itself; the result lies as ``made``."""
    region = region_of(front)
    body = region.body
    tensors = (*body.inputs[: len(front.tensors)], *body.outputs)
    lies = dict(zip(tensors, (*front.tensors, made), strict=True))
    for value in body.inputs[len(front.tensors) :]:
        lies[value] = tensor_of(value.type, CHANNELS_LAST)  # a number for each channel
    suited = print_region(region, lies.__getitem__, machine)
    assert _order(region, suited.binding) == order_of(front)
    return suited.kernel.launch


@cache
def order_of(front: InFront) -> tuple[int, ...]:
    """What this kernel takes, by the numbers of what is read; the result's is the next one."""
    region = region_of(front)
    return _order(region, region.kernel[1])


def _order(region: FusedSequence, binding: Binding) -> tuple[int, ...]:
    values = (*region.body.inputs, *region.body.outputs)
    read = [*(slot.value for slot in binding.slots), *(v.value for v in binding.vectors)]
    return tuple(map(values.index, read))
