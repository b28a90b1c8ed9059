"""Producers as plain data: what computes the gradient that a gradient of a convolution reads.

A kernel fuses the producer, or it runs as a kernel of its own before the contraction.
"""

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
from ..sequence.reschedule import print_region
from ..tensor import Tensor, tensor_of
from .epilogue_reduction import Operators, numbered, rebuild_nodes

MOST_PRODUCER_OPERATORS = 2
"""Tensors that a producer may read: with more, a multiprocessor has too few pixels in flight."""


@dataclass(frozen=True)
class Producer:
    """A producer: point-wise operators on tensors and vectors, whose result a contraction reads.

    Attributes:
        read: the types of the values that are read, tensors first.
        operators: each with the numbers of its operands.
        tensors: the layouts of the tensors.
    """

    read: tuple[TensorType, ...]
    operators: Operators
    tensors: tuple[Tensor, ...]

    @property
    def vectors(self) -> tuple[str, ...]:
        """The dtypes of the vectors that are read."""
        return tuple(type.dtype for type in self.read[len(self.tensors) :])


def producer_of(body: Graph, layout_of: Callable[[Value], Tensor]) -> tuple[Producer, list[Value]]:
    """Records as a producer nodes that make one result from tensors of its shape and from vectors;
    returns it with what it reads, tensors first."""
    shape = body.outputs[0].shape
    read = sorted(body.inputs, key=lambda value: value.shape != shape)
    _, operators = numbered(read, body.nodes)
    tensors = tuple(layout_of(value) for value in read if value.shape == shape)
    return Producer(tuple(value.type for value in read), operators, tensors), read


@cache
def region_of(producer: Producer) -> FusedSequence:
    """Makes a region of the nodes; its operands are in the order of ``read``."""
    values, nodes = rebuild_nodes(producer.read, producer.operators)
    _, _, rows, columns = values[-1].type.plane
    body = Graph(values[: len(producer.read)], values[-1:], nodes, "in front")
    return FusedSequence(body, Schedule(rows, columns))


@cache
def launch_of(producer: Producer, made: Tensor, machine: Machine) -> Launch:
    """The kernel that computes a producer by itself; ``made`` is its result's layout."""
    region = region_of(producer)
    body = region.body
    tensors = (*body.inputs[: len(producer.tensors)], *body.outputs)
    layouts = dict(zip(tensors, (*producer.tensors, made), strict=True))
    for value in body.inputs[len(producer.tensors) :]:
        layouts[value] = tensor_of(value.type, CHANNELS_LAST)  # a number for each channel
    printed = print_region(region, layouts.__getitem__, machine)
    assert _order(region, printed.binding) == order_of(producer)
    return printed.kernel.launch


@cache
def order_of(producer: Producer) -> tuple[int, ...]:
    """The order of that kernel's pointers: the numbers of the values that are read; the result's
    number is the next one."""
    region = region_of(producer)
    return _order(region, region.kernel[1])


def _order(region: FusedSequence, binding: Binding) -> tuple[int, ...]:
    values = (*region.body.inputs, *region.body.outputs)
    read = [*(slot.value for slot in binding.slots), *(v.value for v in binding.vectors)]
    return tuple(map(values.index, read))
