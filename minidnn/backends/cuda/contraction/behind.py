"""What is computed behind a contraction and added up, as plain data."""

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
"""Each with the values that it reads, which are numbers: first those that are read, then those that
the operators make."""


@dataclass(frozen=True)
class SumsBehind:
    """A sweep over a contraction's result and other values: the body of a region of sums.

    Values are numbers: first those that are read, of which the contraction's result is the first,
    then those that the operators make.

    Attributes:
        read: the types of values that are read.
        operators: each with the values that it reads.
        results: sums, and what is stored on the way.
        tensors: how those that are read and no vectors lie, but for the contraction's result.
        stored: how what is stored lies.
        keeps: whether the contraction's result is a result, too.
    """

    read: tuple[TensorType, ...]
    operators: Operators
    results: tuple[int, ...]
    tensors: tuple[Tensor, ...] = ()
    stored: tuple[Tensor, ...] = ()
    keeps: bool = True

    @property
    def vectors(self) -> tuple[str, ...]:
        """The dtypes of the other values that are read."""
        shape = self.read[0].shape
        return tuple(type.dtype for type in self.read if type.shape != shape)

    @property
    def is_moments(self) -> bool:
        """Whether it is mean and variance of the result, and nothing else."""
        kinds = [type(op) for op, _ in self.operators]
        return kinds == [Reduce, Variance] and self.results == (1, 2)


def recorded(
    op: FusedSums, first: Value, tensors: Sequence[Tensor], stored: Sequence[Tensor], keeps: bool
) -> tuple[SumsBehind, list[Value]]:
    """A region behind what makes its operand ``first``; and its other operands, tensors first."""
    others = [value for value in op.body.inputs if value is not first]
    others.sort(key=lambda value: value.shape != op.shape)
    number, operators = numbered((first, *others), op.body.nodes)
    read = tuple(value.type for value in (first, *others))
    results = tuple(number[value] for value in op.body.outputs)
    made = SumsBehind(read, operators, results, tuple(tensors), tuple(stored), keeps)
    return made, others


def numbered(read: Sequence[Value], nodes: Sequence[Node]) -> tuple[dict[Value, int], Operators]:
    """The numbers of values that are read and of those that nodes make, and these as operators."""
    number = {value: i for i, value in enumerate(read)}
    operators = []
    for node in nodes:
        operators.append((node.op, tuple(number[value] for value in node.inputs)))
        number[node.output] = len(number)
    return number, tuple(operators)


def rebuilt(read: Sequence[TensorType], operators: Operators) -> tuple[list[Value], list[Node]]:
    """Values by their numbers, and the nodes again."""
    values, nodes = [Value(type, f"x{i}") for i, type in enumerate(read)], list[Node]()
    for i, (op, operands) in enumerate(operators):
        nodes.append(Node(op, [values[k] for k in operands], f"n{i}"))
        values.append(nodes[-1].output)
    return values, nodes


@cache
def region_of(behind: SumsBehind) -> FusedSums:
    """The region again; its operands are in the order of ``read``."""
    values, nodes = rebuilt(behind.read, behind.operators)
    read, results = values[: len(behind.read)], [values[i] for i in behind.results]
    return FusedSums(Graph(read, results, nodes, "behind"))
