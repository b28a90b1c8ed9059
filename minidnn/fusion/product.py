"""A region of a product of batches of matrices and of the orders in which its matrices lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minidnn._cached_property import cached_property
from minidnn.fusion.region import Region
from minidnn.graph.ir import Node, Value
from minidnn.graph.operator import Elementwise
from minidnn.graph.operators import MatMul, Transpose
from minidnn.graph.types import TensorType

__all__ = ["FusedProduct", "dense_steps", "factor_of"]

Steps = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class FusedProduct(Region):
    """A MatMul with the transposes of its operands and of its result, and with factors before and
    behind it.  ``body`` is these nodes: each operand's in a chain, then the MatMul, then the
    result's."""

    @cached_property
    def matmul(self) -> Node:
        return next(node for node in self.body.nodes if isinstance(node.op, MatMul))

    @cached_property
    def multiplied(self) -> tuple[Value, Value]:
        """The body's inputs that the product's first and second operand are made of."""
        a, b = (_made_of(value)[0] for value in self.matmul.inputs)
        return a, b

    @cached_property
    def steps(self) -> tuple[Steps, Steps]:
        """How many elements of the region's operands lie between neighbours along each axis of the
        product's operands."""
        a, b = (_made_of(value)[1] for value in self.matmul.inputs)
        return a, b

    @cached_property
    def result_steps(self) -> Steps:
        """The same of the product's result in what the region writes."""
        steps = dense_steps(self.body.outputs[0].type)
        for node in reversed(self._behind):
            if isinstance(node.op, Transpose):
                moved = zip(node.op.dims, steps, strict=True)
                steps = tuple(step for _, step in sorted(moved))
        return steps

    @cached_property
    def factor(self) -> float:
        """By what the product's sums are multiplied."""
        product = 1.0
        for node in self.body.nodes:
            factor = factor_of(node)
            product *= 1.0 if factor is None else factor
        return product

    @property
    def _behind(self) -> Sequence[Node]:
        nodes = self.body.nodes
        return nodes[nodes.index(self.matmul) + 1 :]


def _made_of(value: Value) -> tuple[Value, Steps]:
    """The input of a body that a chain of transposes and factors begins with, and how many of its
    elements lie between neighbours along each axis of the chain's end."""
    node = value.producer
    if node is None:
        return value, dense_steps(value.type)
    source, steps = _made_of(node.inputs[0])
    if isinstance(node.op, Transpose):
        steps = tuple(steps[axis] for axis in node.op.dims)
    return source, steps


def dense_steps(type: TensorType) -> Steps:
    """How many elements lie between neighbours along each axis of a dense value."""
    steps = [1] * type.rank
    for axis in reversed(range(type.rank - 1)):
        steps[axis] = steps[axis + 1] * type.shape[axis + 1]
    return tuple(steps)


def factor_of(node: Node) -> float | None:
    """The number by which a node multiplies its one operand; None if it does something else."""
    op = node.op
    if not isinstance(op, Elementwise) or len(node.inputs) != 1:
        return None
    expression = op.expression()
    if expression.op != "mul":
        return None
    argument, number = sorted(expression.operands, key=lambda each: each.op)
    if (argument.op, number.op) != ("argument", "constant"):
        return None
    assert isinstance(number.value, (int, float))
    return float(number.value)
