"""Regions of batched matrix products whose operands and results are views with other axis orders,
and the description that a kernel of such a product needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from minidnn._cached_property import cached_property
from minidnn.fusion.region import CoreRegion
from minidnn.fusion.strided import StridedView, read_view, written_view
from minidnn.graph.attention_patterns import factor_of
from minidnn.graph.ir import Node, Value
from minidnn.graph.operators import MatMul
from minidnn.graph.registry import register

__all__ = ["FusedProduct"]


@register
@dataclass(frozen=True, eq=False)
class FusedProduct(CoreRegion):
    """A MatMul with the views that are its operands and its result, and with scalar factors before
    and after it."""

    CORES = (MatMul,)

    @cached_property
    def multiplied(self) -> tuple[tuple[Value, StridedView], tuple[Value, StridedView]]:
        """The body's inputs that the product's first and second operand are views of, with these
        views."""
        a, b = map(read_view, self.core.inputs)
        return a, b

    @cached_property
    def result(self) -> StridedView:
        """The view of the region's result that the product is written to."""
        return written_view(self.body, self.core.output)[1]

    @cached_property
    def factor(self) -> float:
        """The scalar that the product's sums are multiplied by."""
        product = 1.0
        for node in self.body.nodes:
            factor = factor_of(node)
            product *= 1.0 if factor is None else factor
        return product


Steps = tuple[int, ...]


@dataclass(frozen=True)
class _MatrixSteps:
    """Strides in elements: from row to row, from column to column, and from matrix to matrix along
    each axis of the batch, and the offset of the first matrix; 0 where there is one of them, or one
    for all."""

    rows: int
    columns: int
    batch: Steps
    offset: int = 0

    @property
    def transposed(self) -> _MatrixSteps:
        """The strides of the transposed matrices."""
        return replace(self, rows=self.columns, columns=self.rows)

    def width(self, widest: int, inner: int) -> int:
        """The vector width of accesses along the contiguous axis, which has ``inner`` elements:
        ``widest``, 2 or 1."""
        line = self.rows if self.columns == 1 else self.columns
        others = (line, *self.batch, self.offset, inner)
        return next(n for n in (widest, 2, 1) if all(step % n == 0 for step in others))


@dataclass(frozen=True)
class BatchedProduct:
    """A batched matrix product: ``rows`` x ``inner`` by ``inner`` x ``columns`` for each matrix of
    ``batch``; rows of the result are contiguous, and so are rows or columns of each operand."""

    dtype: str
    result: str
    rows: int
    columns: int
    inner: int
    batch: Steps
    a: _MatrixSteps
    b: _MatrixSteps
    y: _MatrixSteps
    factor: float = 1.0

    @property
    def batch_steps(self) -> dict[str, Steps]:
        """The strides along each axis of the batch, of operands and result."""
        return {"a": self.a.batch, "b": self.b.batch, "y": self.y.batch}

    @property
    def count(self) -> int:
        """The number of matrix products."""
        return prod(self.batch)


def shape_of(node: Node) -> tuple[BatchedProduct, tuple[Value, Value]]:
    """Returns the product of a MatMul or of a region of one, with its first and second operand;
    where columns of the result are contiguous, that is the transposed product, its operands
    exchanged."""
    shape, operands = _product_of(node)
    return _merged(shape), operands


def _product_of(node: Node) -> tuple[BatchedProduct, tuple[Value, Value]]:
    """The same with all axes of the batch."""
    op = node.op
    if isinstance(op, FusedProduct):
        outer = dict(zip(op.body.inputs, node.inputs, strict=True))
        a, b = (outer[value] for value, _ in op.multiplied)
        matmul, factor = op.core, op.factor
        views = [*(view for _, view in op.multiplied), op.result]
    else:
        a, b = node.inputs
        matmul, factor = node, 1.0
        views = [StridedView.dense(v) for v in (a, b, node.output)]
    batch = views[2].shape[:-2]
    of_a, of_b, y = (_matrices(view, len(batch)) for view in views)
    (rows, columns), inner = views[2].shape[-2:], views[0].shape[-1]
    dtypes = matmul.inputs[0].dtype, node.output.dtype
    shape = BatchedProduct(*dtypes, rows, columns, inner, batch, of_a, of_b, y, factor)
    if shape.y.columns > 1:
        of_a, of_b, y = shape.b.transposed, shape.a.transposed, shape.y.transposed
        shape = replace(shape, rows=columns, columns=rows, a=of_a, b=of_b, y=y)
        a, b = b, a
    return shape, (a, b)


def _matrices(view: StridedView, rank: int) -> _MatrixSteps:
    """The strides of a view's matrices, with ``rank`` axes of the batch."""
    shape, known = view.shape, view.steps
    assert known is not None, view
    rows, columns = known[-2:]
    if rows != 1 and shape[-1] == 1:
        columns = 1  # of one column any stride will do
    elif columns != 1 and shape[-2] == 1:
        rows = 1
    return _MatrixSteps(rows, columns, (*(0,) * (rank + 2 - len(shape)), *known[:-2]), view.offset)


def _merged(shape: BatchedProduct) -> BatchedProduct:
    """The same product with as few axes of the batch as count all matrices."""
    sizes = list(shape.batch)
    steps = [list(matrices.batch) for matrices in (shape.a, shape.b, shape.y)]
    axis = 0
    while axis < len(sizes):
        if sizes[axis] == 1:
            for some in (sizes, *steps):
                del some[axis]
        elif axis and all(some[axis - 1] == some[axis] * sizes[axis] for some in steps):
            sizes[axis - 1] *= sizes[axis]
            del sizes[axis]
            for some in steps:
                del some[axis - 1]
        else:
            axis += 1
    a, b, y = (
        replace(matrices, batch=tuple(some))
        for matrices, some in zip((shape.a, shape.b, shape.y), steps, strict=True)
    )
    return replace(shape, batch=tuple(sizes), a=a, b=b, y=y)
