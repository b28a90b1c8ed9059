"""Symbolic tensors of a graph, and rules for shapes and strides: layouts, broadcasting, windows.

An invalid shape raises GraphError.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Protocol

from minidnn.cudnn.arrays import MAX_DIMENSIONS, packed_strides
from minidnn.cudnn.graph.spec import TensorSpec
from minidnn.errors import GraphError


class Owner(Protocol):
    """The part of a graph that its tensors use."""

    _tensors: list[TensorSpec]
    _names: dict[int, str]

    def pointwise(self, mode: str, *operands: Tensor | float) -> Tensor: ...

    def add(self, a: Tensor, b: Tensor | float) -> Tensor: ...

    def mul(self, a: Tensor, b: Tensor | float) -> Tensor: ...

    def matmul(self, a: Tensor, b: Tensor) -> Tensor: ...


class Tensor:
    """An input or a result; ``+ - * /`` with tensors and numbers add operations."""

    __slots__ = ("graph", "index")

    def __init__(self, graph: Owner, index: int) -> None:
        self.graph = graph
        self.index = index

    @property
    def spec(self) -> TensorSpec:
        return self.graph._tensors[self.index]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return self.spec.strides

    def __add__(self, other: Tensor | float) -> Tensor:
        return self.graph.add(self, other)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self.graph.pointwise("sub", self, other)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self.graph.mul(self, other)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self.graph.pointwise("div", self, other)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.graph.matmul(self, other)

    def __repr__(self) -> str:
        name = self.graph._names.get(self.index) or f"t{self.index}"
        return f"{name}: {self.spec}"


CHANNELS_FIRST = ("NC", "NCW", "NCHW", "NCDHW")
CHANNELS_LAST = ("NC", "NWC", "NHWC", "NDHWC")


def layout_strides(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Dense strides of a layout by name: NCHW, NHWC and their 3- and 5-dimensional forms."""
    if layout in CHANNELS_FIRST and len(layout) == len(shape):
        return packed_strides(tuple(shape))
    if layout in CHANNELS_LAST and len(layout) == len(shape):
        return packed_strides(tuple(shape), channels_last=True)
    valid = sorted({n for n in CHANNELS_FIRST + CHANNELS_LAST if len(n) == len(shape)})
    raise GraphError(
        f"layout {layout!r} is not valid for shape {tuple(shape)}; valid are "
        f"{', '.join(valid) or 'none'}, or give strides"
    )


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether channels are innermost in memory; results of such a tensor have the same layout."""
    if len(shape) < 3:
        return False
    if shape[1] == 1:
        return False
    spatial = [stride for size, stride in zip(shape[2:], strides[2:], strict=True) if size > 1]
    return strides[1] == 1 and all(stride > 1 for stride in spatial)


def check_shape(shape: Sequence[int], argument: str) -> tuple[int, ...]:
    """The shape as a tuple of positive integers."""
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise GraphError(f"{argument} {shape!r} is not a sequence of integers") from None
    if not 1 <= len(sizes) <= MAX_DIMENSIONS:
        raise GraphError(
            f"{argument} {sizes} has {len(sizes)} dimensions; valid are 1 to {MAX_DIMENSIONS}"
        )
    if any(size <= 0 for size in sizes):
        raise GraphError(f"{argument} {sizes} has a size that is not positive")
    return sizes


def per_axis(value: int | Sequence[int], count: int, argument: str, least: int) -> tuple[int, ...]:
    """One integer for each axis, from one integer or a sequence."""
    values = list(value) if isinstance(value, Sequence) else [value] * count
    if len(values) != count:
        raise GraphError(f"{argument} {value!r} has {len(values)} values; {count} are needed")
    try:
        result = tuple(operator.index(item) for item in values)
    except TypeError:
        raise GraphError(f"{argument} {value!r} is not made of integers") from None
    if any(item < least for item in result):
        raise GraphError(f"{argument} {value!r} is below {least}")
    return result


def padding_pair(
    value: int | Sequence[int | Sequence[int]], count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after each axis, from one integer, one per axis, or pairs."""
    items = list(value) if isinstance(value, Sequence) else [value] * count
    if len(items) != count:
        raise GraphError(f"padding {value!r} has {len(items)} values; {count} are needed")
    pairs = [tuple(item) if isinstance(item, Sequence) else (item, item) for item in items]
    if any(len(pair) != 2 for pair in pairs):
        raise GraphError(f"padding {value!r}: each axis takes one integer or (before, after)")
    before = per_axis([pair[0] for pair in pairs], count, "padding", 0)
    after = per_axis([pair[1] for pair in pairs], count, "padding", 0)
    return before, after


def window_output(
    size: Sequence[int],
    window: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """The output extents: how often a window fits along each padded axis.

    Raises:
        GraphError: the window does not fit once.
    """
    result = []
    for axis, length in enumerate(size):
        extent = dilation[axis] * (window[axis] - 1) + 1
        padded = length + before[axis] + after[axis]
        if extent > padded:
            raise GraphError(
                f"a window of {window[axis]} with dilation {dilation[axis]} covers {extent} "
                f"positions and does not fit into {length} padded to {padded} (axis {axis + 2})"
            )
        result.append((padded - extent) // stride[axis] + 1)
    return tuple(result)


def broadcast(shapes: Sequence[tuple[int, ...]], what: str) -> tuple[int, ...]:
    """The common shape of shapes with equally many dimensions, whose sizes are equal or 1."""
    if len({len(shape) for shape in shapes}) != 1:
        raise GraphError(
            f"{what}: shapes {', '.join(map(str, shapes))} differ in their number of dimensions; "
            "write a bias for NCHW as (1, C, 1, 1)"
        )
    result = []
    for axis, sizes in enumerate(zip(*shapes, strict=True)):
        wide = sorted(set(sizes) - {1})
        if len(wide) > 1:
            raise GraphError(
                f"{what}: shapes {', '.join(map(str, shapes))} do not fit together in axis {axis}"
            )
        result.append(wide[0] if wide else 1)
    return tuple(result)
