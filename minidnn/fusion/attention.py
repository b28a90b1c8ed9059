"""Regions of attention and of its gradient, and the descriptions that their kernels need.

Attention adds up values, weighted by the softmax of scores, which are products of queries and keys.
A region writes no scores; what it leaves for its gradient is the logarithm of each row's sum of
exponentials, from which the weights follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minidnn._cached_property import cached_property
from minidnn.fusion.region import CoreRegion
from minidnn.fusion.strided import StridedView, read_view, written_view
from minidnn.graph.ir import Node, Value
from minidnn.graph.operators import Attention, AttentionGradient
from minidnn.graph.registry import register

__all__ = [
    *("AttentionGradientShape", "AttentionShape", "FeatureRows", "FusedAttention"),
    *("FusedAttentionGradient", "attention_shape", "gradient_shape"),
]

Steps = tuple[int, ...]


@dataclass(frozen=True)
class FeatureRows:
    """Strides in elements of rows whose features are contiguous: from row to row, along each axis
    of the batch, and the offset of the first row."""

    rows: int
    batch: Steps
    offset: int = 0

    def is_aligned(self, elements: int) -> bool:
        """Whether each row begins at a multiple of ``elements`` elements."""
        return all(step % elements == 0 for step in (self.rows, *self.batch, self.offset))


@dataclass(frozen=True)
class AttentionShape:
    """Sizes, layouts of queries, keys, values and the result, and the factor of scores."""

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
    """Layouts of the result's gradient and of those of queries, keys and values; the gradients of
    queries and keys are multiplied by the factor of scores, too."""

    attention: AttentionShape
    g: FeatureRows
    dq: FeatureRows
    dk: FeatureRows
    dv: FeatureRows


class _OfAttention(CoreRegion):
    """A region of attention or its gradient, with the views that are its operands and results."""

    CORES = (Attention, AttentionGradient)

    @cached_property
    def given(self) -> Sequence[tuple[int, StridedView]]:
        """For each operand of the node the index of the region's operand that it is a view of, and
        the view."""
        sources = map(read_view, self.core.inputs)
        return [(self.body.inputs.index(value), view) for value, view in sources]

    def written(self, value: Value) -> tuple[int, StridedView]:
        """The index of the region's result that a result of the node is a part of, and its view."""
        return written_view(self.body, value)

    @property
    def _found(self) -> AttentionShape | AttentionGradientShape | str:
        """Sizes and layouts for kernels, or why there are none."""
        raise NotImplementedError

    @property
    def why_not_strided(self) -> str | None:
        """Why operands and results have no layout that kernels read and write; None if they
        have."""
        return self._found if isinstance(self._found, str) else None


@register
@dataclass(frozen=True, eq=False)
class FusedAttention(_OfAttention):
    """Attention.  The second result, if there is one, is the logarithm of each query's sum of
    exponentials."""

    @cached_property
    def _found(self) -> AttentionShape | str:
        views = [*(view for _, view in self.given), self.written(self.core.outputs[0])[1]]
        return attention_shape(self.core, views)

    @property
    def shape(self) -> AttentionShape:
        """Sizes and layouts for its kernel."""
        assert isinstance(self._found, AttentionShape), self._found
        return self._found


@register
@dataclass(frozen=True, eq=False)
class FusedAttentionGradient(_OfAttention):
    """The gradients of queries, keys and values, each a result or a part of one."""

    @property
    def results(self) -> Sequence[tuple[int, StridedView]]:
        """For each gradient the index of the region's result that it is a part of, and its view."""
        return [self.written(value) for value in self.core.outputs]

    @cached_property
    def _found(self) -> AttentionGradientShape | str:
        return gradient_shape(self.core, [view for _, view in (*self.given, *self.results)])

    @property
    def shape(self) -> AttentionGradientShape:
        """Sizes and layouts for its kernels."""
        assert isinstance(self._found, AttentionGradientShape), self._found
        return self._found


def attention_shape(node: Node, views: Sequence[StridedView]) -> AttentionShape | str:
    """Returns the sizes and layouts for a kernel of attention, or why there is none.

    views: of queries, keys, values and the result.
    """
    assert isinstance(node.op, (Attention, AttentionGradient))
    q, k, v = node.inputs[:3]
    layouts = [_lines(view) for view in views]
    if k.shape[-1] != v.shape[-1]:
        return f"keys have {k.shape[-1]} features and values {v.shape[-1]}"
    of_q, of_k, of_v, of_y = layouts
    if of_q is None or of_k is None or of_v is None or of_y is None:
        return "features are not contiguous"
    sizes = q.shape[-2], k.shape[-2], q.shape[-1], q.shape[:-2]
    return AttentionShape(q.dtype, *sizes, of_q, of_k, of_v, of_y, node.op.scale)


def gradient_shape(node: Node, views: Sequence[StridedView]) -> AttentionGradientShape | str:
    """Returns the sizes and layouts for kernels of the gradient, or why there are none.

    views: of the node's operands, and then of its results.
    """
    q, k, v, y, _, g, *gradients = views
    attention = attention_shape(node, (q, k, v, y))
    if isinstance(attention, str):
        return attention
    of_g, dq, dk, dv = (_lines(view) for view in (g, *gradients))
    if of_g is None or dq is None or dk is None or dv is None:
        return "features of gradients are not contiguous"
    return AttentionGradientShape(attention, of_g, dq, dk, dv)


def _lines(view: StridedView) -> FeatureRows | None:
    """The strides of a view's rows, if their features are contiguous; else None."""
    steps = view.steps
    if steps is None or steps[-1] not in (0, 1):
        return None
    return FeatureRows(steps[-2], steps[:-2], view.offset)
