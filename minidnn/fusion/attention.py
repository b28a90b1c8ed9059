"""Regions of attention and of its gradient, and what a kernel of them must know.

Attention is a softmax of scores, products of queries and keys, whose products with values are added
up.  A region writes no scores; what it leaves for its gradient is the logarithm of each row's sum
of exponentials, of which the weights follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minidnn._cached_property import cached_property
from minidnn.fusion.region import Region
from minidnn.fusion.strided import StridedView, read_view, written_view
from minidnn.graph.ir import Node, Value
from minidnn.graph.operators import Attention, AttentionGradient

__all__ = [
    *("AttentionGradientShape", "AttentionShape", "FeatureRows", "FusedAttention"),
    *("FusedAttentionGradient", "attention_shape", "gradient_shape"),
]

Steps = tuple[int, ...]


@dataclass(frozen=True)
class FeatureRows:
    """How many elements lie between neighbouring rows, whose features follow each other, along each
    axis of the batch, and in front of the first row."""

    rows: int
    batch: Steps
    offset: int = 0

    def is_aligned(self, elements: int) -> bool:
        """Whether each row begins at a multiple of so many elements."""
        return all(step % elements == 0 for step in (self.rows, *self.batch, self.offset))


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
    """How the result's gradient and those of queries, keys and values lie; the latter's results are
    multiplied by the same factor as scores, but for those of values."""

    attention: AttentionShape
    g: FeatureRows
    dq: FeatureRows
    dk: FeatureRows
    dv: FeatureRows


class _OfAttention(Region):
    """One node of attention, with the views that are its operands and its results."""

    @cached_property
    def node(self) -> Node:
        """Attention, or its gradient."""
        kinds = (Attention, AttentionGradient)
        return next(node for node in self.body.nodes if isinstance(node.op, kinds))

    @cached_property
    def given(self) -> Sequence[tuple[int, StridedView]]:
        """For each operand of the node the operand of the region that it is a view of, and how."""
        found = map(read_view, self.node.inputs)
        return [(self.body.inputs.index(value), view) for value, view in found]

    def written(self, value: Value) -> tuple[int, StridedView]:
        """The result of the region that a result of the node is a part of, and how it lies."""
        return written_view(self.body, value)


@dataclass(frozen=True, eq=False)
class FusedAttention(_OfAttention):
    """Attention.  The second result, if there is one, is the logarithm of each query's sum of
    exponentials."""

    @cached_property
    def shape(self) -> AttentionShape:
        """What its kernel must know."""
        node = self.node
        views = [*(view for _, view in self.given), self.written(node.outputs[0])[1]]
        found = attention_shape(node, views)
        assert isinstance(found, AttentionShape), found
        return found


@dataclass(frozen=True, eq=False)
class FusedAttentionGradient(_OfAttention):
    """The gradients by queries, keys and values, each a result or a part of one."""

    @property
    def results(self) -> Sequence[tuple[int, StridedView]]:
        """For each gradient the result of the region that it is a part of, and how it lies."""
        return [self.written(value) for value in self.node.outputs]

    @cached_property
    def shape(self) -> AttentionGradientShape:
        """What its kernels must know."""
        views = [view for _, view in (*self.given, *self.results)]
        found = gradient_shape(self.node, views)
        assert isinstance(found, AttentionGradientShape), found
        return found


def attention_shape(node: Node, views: Sequence[StridedView]) -> AttentionShape | str:
    """What a kernel of attention must know, or why there is none.

    views: how queries, keys, values and the result lie.
    """
    assert isinstance(node.op, (Attention, AttentionGradient))
    q, k, v = node.inputs[:3]
    lines = [_lines(view) for view in views]
    if k.shape[-1] != v.shape[-1]:
        return f"keys have {k.shape[-1]} features and values {v.shape[-1]}"
    of_q, of_k, of_v, of_y = lines
    if of_q is None or of_k is None or of_v is None or of_y is None:
        return "features do not follow each other"
    sizes = q.shape[-2], k.shape[-2], q.shape[-1], q.shape[:-2]
    return AttentionShape(q.dtype, *sizes, of_q, of_k, of_v, of_y, node.op.scale)


def gradient_shape(node: Node, views: Sequence[StridedView]) -> AttentionGradientShape | str:
    """What kernels of the gradient must know, or why there are none.

    views: how the node's operands lie, and then its results.
    """
    q, k, v, y, _, g, *made = views
    attention = attention_shape(node, (q, k, v, y))
    if isinstance(attention, str):
        return attention
    of_g, dq, dk, dv = (_lines(view) for view in (g, *made))
    if of_g is None or dq is None or dk is None or dv is None:
        return "features of gradients do not follow each other"
    return AttentionGradientShape(attention, of_g, dq, dk, dv)


def _lines(view: StridedView) -> FeatureRows | None:
    """How rows lie whose features follow each other; None for others."""
    steps = view.steps
    if steps is None or steps[-1] not in (0, 1):
        return None
    return FeatureRows(steps[-2], steps[:-2], view.offset)
