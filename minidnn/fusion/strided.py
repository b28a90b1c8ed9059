"""Where the elements of a value lie in another one, of which it is a view.

What transposes, slices, and gives another shape, moves nothing if whoever reads its result reads
the source by other steps; and the same holds for what is written.
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
    *("StridedView", "before_view", "dense_steps", "is_view", "read_view", "view_of"),
    "written_view",
]

Steps = tuple[int, ...]


Run = tuple[int, int]
"""So many elements, and how many of the source lie between neighbours."""


@dataclass(frozen=True)
class StridedView:
    """How a value lies in its source: for each axis runs, of which the last one goes round first,
    and how many elements lie in front of the first one."""

    axes: tuple[tuple[Run, ...], ...]
    offset: int = 0

    @classmethod
    def dense(cls, value: Value) -> StridedView:
        """A value as it is stored."""
        runs = zip(value.shape, dense_steps(value.type), strict=True)
        return cls(tuple((run,) for run in runs))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(prod(size for size, _ in runs) for runs in self.axes)

    @cached_property
    def steps(self) -> Steps | None:
        """How many elements of the source lie between neighbours along each axis, 0 where there is
        one; None if an axis has several steps."""
        steps = []
        for runs in self.axes:
            merged = _merged(runs)
            if len(merged) > 1:
                return None
            steps.append(merged[0][1] if merged else 0)
        return tuple(steps)

    def transposed(self, dims: Sequence[int]) -> StridedView:
        return StridedView(tuple(self.axes[axis] for axis in dims), self.offset)

    def part(
        self, starts: Sequence[int], sizes: Sequence[int], by: Sequence[int]
    ) -> StridedView | None:
        """Along each axis so many elements from a start on, every ``by``-th; None if there are
        no such runs."""
        axes: list[tuple[Run, ...]] = []
        offset = self.offset
        for runs, start, size, each in zip(self.axes, starts, sizes, by, strict=True):
            merged = _merged(runs)
            if (start, size, each) == (0, prod(n for n, _ in merged), 1):
                axes.append(runs)
            elif len(merged) == 1:
                offset += start * merged[0][1]
                axes.append(((size, each * merged[0][1]),))
            else:
                return None
        return StridedView(tuple(axes), offset)

    def viewed(self, shape: Sequence[int]) -> StridedView | None:
        """The same elements in another shape; None if sizes do not divide the runs."""
        if 0 in shape:
            return None
        left = [list(run) for run in _merged([run for runs in self.axes for run in runs])]
        axes: list[tuple[Run, ...]] = []
        for size in reversed(shape):
            runs: list[Run] = []
            while size > 1:
                length, step = left[-1]
                part = gcd(size, length)
                if part == 1 or part not in (size, length):
                    return None
                runs.insert(0, (part, step))
                left[-1] = [length // part, step * part]
                size //= part
                if left[-1][0] == 1:
                    left.pop()
            axes.insert(0, tuple(runs))
        return StridedView(tuple(axes), self.offset)

    def is_aligned(self, elements: int) -> bool:
        """Whether its last axis follows itself, and all else lies at multiples of so many."""
        steps = self.steps
        if steps is None:
            return False
        return steps[-1] in (0, 1) and all(n % elements == 0 for n in (*steps[:-1], self.offset))


def _merged(runs: Sequence[Run]) -> list[Run]:
    """Runs without those of one element, and one for several that follow each other."""
    found: list[Run] = []
    for size, step in runs:
        if size == 1:
            continue
        if found and found[-1][1] == step * size:
            found[-1] = (found[-1][0] * size, step)
        else:
            found.append((size, step))
    return found


def dense_steps(type: TensorType) -> Steps:
    """How many elements lie between neighbours along each axis of a dense value."""
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
    """The result of a chain of nodes as a view of what it begins with; what is no view computes
    element by element.  None if its elements have no steps there."""
    view: StridedView | None = StridedView.dense(source)
    for node in nodes:
        view = None if view is None else _behind(node, view)
    return view


def read_view(value: Value) -> tuple[Value, StridedView]:
    """The input of a body that a value is a view of, and how."""
    nodes: list[Node] = []
    while (node := value.producer) is not None:
        nodes.insert(0, node)
        value = node.inputs[0]
    view = view_of(value, nodes)
    assert view is not None
    return value, view


def written_view(body: Graph, value: Value) -> tuple[int, StridedView]:
    """Which output of a body a value is written to as a part of it, and where it lies there."""
    if value in body.outputs:
        return body.outputs.index(value), StridedView.dense(value)
    (node,) = body.readers[value]
    place, view = written_view(body, node.output)
    before = before_view(node, node.inputs.index(value), view)
    assert before is not None
    return place, before


def before_view(node: Node, operand: int, view: StridedView) -> StridedView | None:
    """Where an operand lies if the result of a node does so; None if it has no steps there."""
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
    op = node.op
    if isinstance(op, Transpose):
        return view.transposed(op.dims)
    if isinstance(op, Slice):
        return view.part(op.starts, op.sizes, op.steps)
    if isinstance(op, Reshaping):
        return view.viewed(node.output.shape)
    assert prod(node.output.shape) == prod(view.shape), node
    return view
