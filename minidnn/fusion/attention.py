"""Regions of attention and of its gradient, and what a kernel of them must know.

Attention is a softmax of scores, products of queries and keys, whose products with values are added
up.  A region writes no scores; what it leaves for its gradient is the logarithm of each row's sum
of exponentials, of which the weights follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minidnn._cached_property import cached_property
from minidnn.fusion.product import FusedProduct
from minidnn.fusion.product_shape import MatrixSteps, product_of
from minidnn.fusion.region import Region
from minidnn.graph.ir import Node
from minidnn.graph.operators import MatMul

__all__ = ["AttentionShape", "FusedAttention", "FusedAttentionGradient", "is_product"]

Steps = tuple[int, ...]


@dataclass(frozen=True)
class FeatureRows:
    """How many elements lie between neighbouring rows, whose features follow each other, and along
    each axis of the batch."""

    rows: int
    batch: Steps

    def is_aligned(self, elements: int) -> bool:
        """Whether each row begins at a multiple of so many elements."""
        return all(step % elements == 0 for step in (self.rows, *self.batch))


@dataclass(frozen=True)
class AttentionShape:
    """Sizes, how queries, keys, values and the result lie, and by what scores are multiplied."""

    dtype: str
    queries: int
    keys: int
    size: int
    batch: Steps
    q: FeatureRows
    k: FeatureRows
    v: FeatureRows
    y: FeatureRows
    factor: float


@dataclass(frozen=True)
class AttentionGradientShape:
    """How the result's gradient and those of queries, keys and values lie, and by what the products
    that make these are multiplied."""

    attention: AttentionShape
    g: FeatureRows
    dq: FeatureRows
    dk: FeatureRows
    dv: FeatureRows
    factors: tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class FusedAttention(Region):
    """Attention of queries, keys and values, the operands in this order.  The second result, if
    there is one, is the logarithm of each query's sum of exponentials, in float32."""

    @cached_property
    def products(self) -> tuple[Node, Node]:
        """Those of scores and of values."""
        scores, values = filter(is_product, self.body.nodes)
        return scores, values

    @cached_property
    def shape(self) -> AttentionShape:
        """What its kernel must know."""
        found = attention_shape(*self.products)
        assert isinstance(found, AttentionShape), found
        return found


@dataclass(frozen=True, eq=False)
class FusedAttentionGradient(Region):
    """The gradients for queries, keys and values, in this order, of these, the result, its gradient
    and the logarithms that :class:`FusedAttention` gives.  The body makes the weights again; it
    does not read the result, of which a kernel takes what the softmax takes off each row.

    ``result`` is how that lies."""

    result: tuple[int, Steps] = field(default=(0, ()), repr=False)

    @cached_property
    def products(self) -> tuple[Node, ...]:
        """Those of scores, of their gradients, and for queries, keys and values."""
        return tuple(filter(is_product, self.body.nodes))

    @cached_property
    def shape(self) -> AttentionGradientShape:
        """What its kernels must know."""
        found = gradient_shape(self.products, FeatureRows(*self.result))
        assert isinstance(found, AttentionGradientShape), found
        return found


def is_product(node: Node) -> bool:
    """Whether a node is a product of batches of matrices."""
    return isinstance(node.op, (MatMul, FusedProduct))


def attention_shape(scores: Node, values: Node) -> AttentionShape | str:
    """What a kernel of attention must know, or why there is none."""
    (first, _), (second, operands) = product_of(scores), product_of(values)
    if operands[0] is not values.inputs[0] or not _is_dense(
        second.a, second.batch, second.rows, second.inner
    ):
        return "its weights are transposed"
    if (first.rows, first.columns, first.batch) != (second.rows, second.inner, second.batch):
        return "its weights have another shape than its scores"
    if not _is_dense(first.y, first.batch, first.rows, first.columns) or second.factor != 1.0:
        return "its scores are transposed, or its result is multiplied by something"
    parts = (_lines(first.a), _lines(first.b.turned), _lines(second.b), _lines(second.y))
    q, k, v, y = parts
    if q is None or k is None or v is None or y is None:
        return "features do not follow each other"
    if first.inner != second.columns:
        return f"keys have {first.inner} features and values {second.columns}"
    sizes = (first.rows, first.columns, first.inner, first.batch)
    return AttentionShape(first.dtype, *sizes, q, k, v, y, first.factor)


def gradient_shape(products: tuple[Node, ...], result: FeatureRows) -> AttentionGradientShape | str:
    """What kernels of the gradient must know, or why there are none.

    products: those of scores, of gradients of weights, and for queries, keys and values.
    """
    scores, weights, *made = (product_of(node) for node in products)
    first, of_weights = scores[0], weights[0]
    sizes = (first.rows, first.columns, first.inner, first.batch)
    if (of_weights.rows, of_weights.columns, of_weights.inner, of_weights.batch) != sizes:
        return "gradients of weights have another shape than scores"
    square = (first.batch, first.rows, first.columns)
    if not _is_dense(first.y, *square) or not _is_dense(of_weights.y, *square):
        return "scores or gradients of weights are transposed"
    if of_weights.factor != 1.0:
        return "gradients of weights are multiplied by something"
    q, k = _lines(first.a), _lines(first.b.turned)
    g, v = _lines(of_weights.a), _lines(of_weights.b.turned)
    written = []
    for number, (shape, _) in enumerate(made):
        rows = first.columns if number else first.rows
        inner = first.rows if number else first.columns
        lies = shape.a.turned if number else shape.a
        if (shape.rows, shape.columns, shape.inner, shape.batch) != (
            *(rows, first.inner, inner),
            first.batch,
        ) or not _is_dense(lies, *square):
            return "the product for queries, keys or values has another shape"
        written.append((_lines(shape.b), _lines(shape.y)))
    if [read for read, _ in written] != [k, q, g]:
        return "what is multiplied lies in several ways"
    dq, dk, dv = (lines for _, lines in written)
    if q is None or k is None or v is None or g is None or dq is None or dk is None or dv is None:
        return "features do not follow each other"
    attention = AttentionShape(first.dtype, *sizes, q, k, v, result, first.factor)
    of_queries, of_keys, of_values = (shape.factor for shape, _ in made)
    return AttentionGradientShape(attention, g, dq, dk, dv, (of_queries, of_keys, of_values))


def _is_dense(steps: MatrixSteps, batch: Steps, rows: int, columns: int) -> bool:
    """Whether matrices of that shape lie as a dense value has them."""
    sizes = (*batch, rows, columns)
    dense = [1] * len(sizes)
    for axis in reversed(range(len(sizes) - 1)):
        dense[axis] = dense[axis + 1] * sizes[axis + 1]
    found = zip(sizes, (*steps.batch, steps.rows, steps.columns), dense, strict=True)
    return all(size == 1 or step == wanted for size, step, wanted in found)


def _lines(steps: MatrixSteps) -> FeatureRows | None:
    """How rows lie whose columns follow each other; None for others."""
    return FeatureRows(steps.rows, steps.batch) if steps.columns == 1 else None
