"""A region of a product of batches of matrices and of the orders in which its matrices lie."""

from __future__ import annotations

from dataclasses import dataclass

from minidnn._cached_property import cached_property
from minidnn.fusion.region import Region
from minidnn.fusion.strided import StridedView, read_view, written_view
from minidnn.graph.attention_patterns import factor_of
from minidnn.graph.ir import Node, Value
from minidnn.graph.operators import MatMul

__all__ = ["FusedProduct"]


@dataclass(frozen=True, eq=False)
class FusedProduct(Region):
    """A MatMul with the views that are its operands and its result, and with factors before and
    behind it.  ``body`` is these nodes: each operand's in a chain, then the MatMul, then the
    result's."""

    @cached_property
    def matmul(self) -> Node:
        return next(node for node in self.body.nodes if isinstance(node.op, MatMul))

    @cached_property
    def multiplied(self) -> tuple[tuple[Value, StridedView], tuple[Value, StridedView]]:
        """The body's inputs that the product's first and second operand are views of, and how."""
        a, b = map(read_view, self.matmul.inputs)
        return a, b

    @cached_property
    def result(self) -> StridedView:
        """How the product's result lies in what the region writes."""
        return written_view(self.body, self.matmul.output)[1]

    @cached_property
    def factor(self) -> float:
        """By what the product's sums are multiplied."""
        product = 1.0
        for node in self.body.nodes:
            factor = factor_of(node)
            product *= 1.0 if factor is None else factor
        return product
