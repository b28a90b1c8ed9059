"""What a kernel of products of batches must know: sizes, and how the matrices lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from minidnn.fusion.product import FusedProduct, dense_steps
from minidnn.graph.ir import Node, Value
from minidnn.graph.types import TensorType

Steps = tuple[int, ...]


@dataclass(frozen=True)
class MatrixSteps:
    """How many elements lie between neighbouring rows, columns, and matrices along each axis of the
    batch; 0 where there is one of them, or one for all."""

    rows: int
    columns: int
    batch: Steps

    @property
    def turned(self) -> MatrixSteps:
        return MatrixSteps(self.columns, self.rows, self.batch)

    def width(self, widest: int, inner: int) -> int:
        """How many elements can be read or written at once along the axis on which they follow each
        other, which has ``inner`` of them: ``widest``, 2 or 1."""
        others = (self.rows if self.columns == 1 else self.columns, *self.batch, inner)
        return next(n for n in (widest, 2, 1) if all(step % n == 0 for step in others))


@dataclass(frozen=True)
class BatchedProduct:
    """``rows`` x ``inner`` by ``inner`` x ``columns``, for each matrix of ``batch``; the result's
    columns follow each other, and so do rows or columns of the operands."""

    dtype: str
    result: str
    rows: int
    columns: int
    inner: int
    batch: Steps
    a: MatrixSteps
    b: MatrixSteps
    y: MatrixSteps
    factor: float = 1.0

    @property
    def batch_steps(self) -> dict[str, Steps]:
        """Those along each axis of the batch, of operands and result."""
        return {"a": self.a.batch, "b": self.b.batch, "y": self.y.batch}

    @property
    def count(self) -> int:
        """How many products of matrices there are."""
        return prod(self.batch)


def shape_of(node: Node) -> tuple[BatchedProduct, tuple[Value, Value]]:
    """The product of a MatMul or of a region of one, and the first and second operand; those of the
    shape are the other way round where the result's rows follow each other."""
    shape, operands = product_of(node)
    return _merged(shape), operands


def product_of(node: Node) -> tuple[BatchedProduct, tuple[Value, Value]]:
    """The same with all axes of the batch."""
    op = node.op
    if isinstance(op, FusedProduct):
        outer = dict(zip(op.body.inputs, node.inputs, strict=True))
        a, b = (outer[value] for value in op.multiplied)
        matmul, factor = op.matmul, op.factor
        (a_steps, b_steps), y_steps = op.steps, op.result_steps
    else:
        a, b = node.inputs
        matmul, factor = node, 1.0
        a_steps, b_steps, y_steps = (dense_steps(v.type) for v in (a, b, node.output))
    types = [value.type for value in (*matmul.inputs, matmul.output)]
    batch = types[2].shape[:-2]
    parts = zip(types, (a_steps, b_steps, y_steps), strict=True)
    of_a, of_b, y = (_matrices(type, steps, len(batch)) for type, steps in parts)
    (rows, columns), inner = types[2].shape[-2:], types[0].shape[-1]
    dtypes = types[0].dtype, node.output.dtype
    shape = BatchedProduct(*dtypes, rows, columns, inner, batch, of_a, of_b, y, factor)
    if shape.y.columns > 1:
        of_a, of_b, y = shape.b.turned, shape.a.turned, shape.y.turned
        shape = replace(shape, rows=columns, columns=rows, a=of_a, b=of_b, y=y)
        a, b = b, a
    return shape, (a, b)


def _matrices(type: TensorType, steps: Steps, rank: int) -> MatrixSteps:
    known = [0 if n == 1 else s for n, s in zip(type.shape, steps, strict=True)]
    rows, columns = known[-2:]
    if rows != 1 and type.shape[-1] == 1:
        columns = 1  # of one column any step will do
    elif columns != 1 and type.shape[-2] == 1:
        rows = 1
    return MatrixSteps(rows, columns, (*(0,) * (rank + 2 - type.rank), *known[:-2]))


def _merged(shape: BatchedProduct) -> BatchedProduct:
    """With as few axes of batches as count all matrices."""
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
