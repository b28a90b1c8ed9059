"""Strided views: where the elements of a value are in another value.

Transposes, slices and reshapes move nothing if whoever reads their result reads the source with
other strides; and the same holds for values that are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd, prod

from minidnn._cached_property import cached_property
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Reshaping
from minidnn.graph.operators import Concat, Identity, Slice, Transpose
from minidnn.graph.types import TensorType

__all__ = [
    *("StridedView", "operand_view", "dense_strides", "is_view", "read_view", "view_of"),
    "written_view",
]

Steps = tuple[int, ...]


Run = tuple[int, int]
"""A number of elements, and their stride in the source."""


@dataclass(frozen=True)
class StridedView:
    """A value as a view of its source: runs for each axis, the innermost last, and the offset of
    the first element."""

    axes: tuple[tuple[Run, ...], ...]
    offset: int = 0

    @classmethod
    def dense(cls, value: Value) -> StridedView:
        """The view of a value as it is stored."""
        runs = zip(value.shape, dense_strides(value.type), strict=True)
        return cls(tuple((run,) for run in runs))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(prod(size for size, _ in runs) for runs in self.axes)

    @cached_property
    def steps(self) -> Steps | None:
        """The stride of each axis in elements of the source, 0 for an axis of one element; None if
        an axis has several strides."""
        steps = []
        for runs in self.axes:
            merged = _merged(runs)
            if len(merged) > 1:
                return None
            steps.append(merged[0][1] if merged else 0)
        return tuple(steps)

    def transposed(self, dims: Sequence[int]) -> StridedView:
        """The view with its axes permuted."""
        return StridedView(tuple(self.axes[axis] for axis in dims), self.offset)

    def part(
        self, starts: Sequence[int], sizes: Sequence[int], by: Sequence[int]
    ) -> StridedView | None:
        """The part with ``sizes`` elements from ``starts`` on along the axes, every ``by``-th; None
        if no runs describe it."""
        axes: list[tuple[Run, ...]] = []
        offset = self.offset
        for runs, start, size, step in zip(self.axes, starts, sizes, by, strict=True):
            merged = _merged(runs)
            if (start, size, step) == (0, prod(n for n, _ in merged), 1):
                axes.append(runs)
            elif len(merged) == 1:
                offset += start * merged[0][1]
                axes.append(((size, step * merged[0][1]),))
            else:
                return None
        return StridedView(tuple(axes), offset)

    def viewed(self, shape: Sequence[int]) -> StridedView | None:
        """The same elements in another shape; None if sizes do not divide the runs."""
        if 0 in shape:
            return None
        remaining = [list(run) for run in _merged([run for runs in self.axes for run in runs])]
        axes: list[tuple[Run, ...]] = []
        for size in reversed(shape):
            runs: list[Run] = []
            while size > 1:
                length, step = remaining[-1]
                part = gcd(size, length)
                if part == 1 or part not in (size, length):
                    return None
                runs.insert(0, (part, step))
                remaining[-1] = [length // part, step * part]
                size //= part
                if remaining[-1][0] == 1:
                    remaining.pop()
            axes.insert(0, tuple(runs))
        return StridedView(tuple(axes), self.offset)

    def is_aligned(self, elements: int) -> bool:
        """Whether its last axis is contiguous, and the other strides and the offset are multiples
        of ``elements``."""
        steps = self.steps
        if steps is None:
            return False
        return steps[-1] in (0, 1) and all(n % elements == 0 for n in (*steps[:-1], self.offset))


def _merged(runs: Sequence[Run]) -> list[Run]:
    """Runs without those of one element, and with contiguous ones merged."""
    merged: list[Run] = []
    for size, step in runs:
        if size == 1:
            continue
        if merged and merged[-1][1] == step * size:
            merged[-1] = (merged[-1][0] * size, step)
        else:
            merged.append((size, step))
    return merged


def dense_strides(type: TensorType) -> Steps:
    """Returns the strides of a dense value."""
    steps = [1] * type.rank
    for axis in reversed(range(type.rank - 1)):
        steps[axis] = steps[axis + 1] * type.shape[axis + 1]
    return tuple(steps)


def is_view(node: Node) -> bool:
    """Whether a node computes nothing and takes each element at most once."""
    if isinstance(node.op, Slice):
        return all(step > 0 for step in node.op.steps)
    return isinstance(node.op, (Transpose, Reshaping, Identity))


def view_of(source: Value, nodes: Sequence[Node]) -> StridedView | None:
    """Returns the result of a chain of nodes as a view of the source; nodes that are no views
    compute element by element.  None if its elements have no strides there."""
    view: StridedView | None = StridedView.dense(source)
    for node in nodes:
        view = None if view is None else _behind(node, view)
    return view


def read_view(value: Value) -> tuple[Value, StridedView]:
    """Returns the input of a body that a value is a view of, and the view."""
    nodes: list[Node] = []
    while (node := value.producer) is not None:
        nodes.insert(0, node)
        value = node.inputs[0]
    view = view_of(value, nodes)
    assert view is not None
    return value, view


def written_view(body: Graph, value: Value) -> tuple[int, StridedView]:
    """Returns the index of the output of a body that a value is written to as a part of it, and its
    view there."""
    if value in body.outputs:
        return body.outputs.index(value), StridedView.dense(value)
    (node,) = body.readers[value]
    place, view = written_view(body, node.output)
    before = operand_view(node, node.inputs.index(value), view)
    assert before is not None
    return place, before


def operand_view(node: Node, operand: int, view: StridedView) -> StridedView | None:
    """Returns the view of an operand, given that of a node's result; None if it has no strides
    there."""
    op, shape = node.op, node.inputs[operand].shape
    if isinstance(op, Transpose):
        return view.transposed([op.dims.index(axis) for axis in range(len(op.dims))])
    if isinstance(op, Reshaping):
        return view.viewed(shape)
    if isinstance(op, Concat):
        axis = op.axis % len(shape)
        begins = list(accumulate((v.shape[axis] for v in node.inputs), initial=0))
        starts = [begins[operand] if i == axis else 0 for i in range(len(shape))]
        return view.part(starts, shape, (1,) * len(shape))
    return view


def _behind(node: Node, view: StridedView) -> StridedView | None:
    """The view of a node's result, given that of its operand; None if it has no strides there."""
    op = node.op
    if isinstance(op, Transpose):
        return view.transposed(op.dims)
    if isinstance(op, Slice):
        return view.part(op.starts, op.sizes, op.steps)
    if isinstance(op, Reshaping):
        return view.viewed(node.output.shape)
    assert prod(node.output.shape) == prod(view.shape), node
    return view
