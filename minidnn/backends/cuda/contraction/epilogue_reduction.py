"""Epilogue reductions as plain data, by which contractions that have one are compared.

An epilogue reduction is a region of sums over what point-wise operators make of a contraction's
result and of other values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ....fusion.region import FusedSums
from ....graph.ir import Graph, Node, Value
from ....graph.operator import Operator
from ....graph.operators import Reduce, Variance
from ....graph.types import TensorType
from ..tensor import Tensor

Operators = tuple[tuple[Operator, tuple[int, ...]], ...]
"""Operators, each with the numbers of its operands: first come the values that are read, then those
that the operators make."""


@dataclass(frozen=True)
class EpilogueReduction:
    """An epilogue reduction: the body of a region of sums that reads a contraction's result.

    Values have numbers: first those that are read, of which the contraction's result is the first,
    then those that the operators make.

    Attributes:
        read: the types of the values that are read.
        operators: each with the numbers of its operands.
        results: the numbers of the sums and of the values that are stored on the way.
        tensors: the layouts of the tensors that are read beside the contraction's result.
        stored: the layouts of the values that are stored.
        keeps: whether the contraction's result is an output, too.
    """

    read: tuple[TensorType, ...]
    operators: Operators
    results: tuple[int, ...]
    tensors: tuple[Tensor, ...] = ()
    stored: tuple[Tensor, ...] = ()
    keeps: bool = True

    @property
    def vectors(self) -> tuple[str, ...]:
        """The dtypes of the values that are read and are no tensors of the result's shape."""
        shape = self.read[0].shape
        return tuple(type.dtype for type in self.read if type.shape != shape)

    @property
    def is_moments(self) -> bool:
        """Whether it computes mean and variance of the result, and nothing else."""
        kinds = [type(op) for op, _ in self.operators]
        return kinds == [Reduce, Variance] and self.results == (1, 2)


def recorded(
    op: FusedSums, first: Value, tensors: Sequence[Tensor], stored: Sequence[Tensor], keeps: bool
) -> tuple[EpilogueReduction, list[Value]]:
    """Records a region as the epilogue reduction of the contraction that makes its operand
    ``first``; returns it with its other operands, tensors first."""
    others = [value for value in op.body.inputs if value is not first]
    others.sort(key=lambda value: value.shape != op.shape)
    number, operators = numbered((first, *others), op.body.nodes)
    read = tuple(value.type for value in (first, *others))
    results = tuple(number[value] for value in op.body.outputs)
    reduction = EpilogueReduction(read, operators, results, tuple(tensors), tuple(stored), keeps)
    return reduction, others


def numbered(read: Sequence[Value], nodes: Sequence[Node]) -> tuple[dict[Value, int], Operators]:
    """Numbers the values that are read, then those that nodes make; returns these numbers, and the
    nodes as operators."""
    number = {value: i for i, value in enumerate(read)}
    operators = []
    for node in nodes:
        operators.append((node.op, tuple(number[value] for value in node.inputs)))
        number[node.output] = len(number)
    return number, tuple(operators)


def rebuild_nodes(
    read: Sequence[TensorType], operators: Operators
) -> tuple[list[Value], list[Node]]:
    """Makes new values, in the order of their numbers, and the nodes that compute them."""
    values, nodes = [Value(type, f"x{i}") for i, type in enumerate(read)], list[Node]()
    for i, (op, operands) in enumerate(operators):
        nodes.append(Node(op, [values[k] for k in operands], f"n{i}"))
        values.append(nodes[-1].output)
    return values, nodes


@cache
def region_of(reduction: EpilogueReduction) -> FusedSums:
    """Makes the region from what was recorded; its operands are in the order of ``read``."""
    values, nodes = rebuild_nodes(reduction.read, reduction.operators)
    read, results = values[: len(reduction.read)], [values[i] for i in reduction.results]
    return FusedSums(Graph(read, results, nodes, "behind"))
