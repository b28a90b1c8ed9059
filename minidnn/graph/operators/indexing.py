"""Moves by index maps that are known before a graph runs, and gather and scatter by indices that
the graph computes."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, prod

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.index_map import OUTSIDE, Indexed, IndexMap, strides_of
from minidnn.graph.operator import Movement, Reduction, is_ints
from minidnn.graph.types import INTEGERS, TensorType

__all__ = ["Expand", "Gather", "Pad", "ScatterAdd", "Slice", "Take", "Transpose", "Unfold2d"]

Pair = tuple[int, int]


@dataclass(frozen=True)
class Transpose(Indexed):
    """Axis ``i`` of the output is axis ``dims[i]`` of the input."""

    dims: tuple[int, ...]

    def __post_init__(self) -> None:
        self.require(
            is_ints(self.dims) and sorted(self.dims) == list(range(len(self.dims))),
            f"dims={self.dims}; valid is each axis once, from 0 on",
        )

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        self.require(
            len(shape) == len(self.dims),
            f"input has shape {shape}; valid is rank {len(self.dims)}",
        )
        return tuple(shape[d] for d in self.dims)

    def index_map(self, shape: tuple[int, ...]) -> IndexMap:
        strides = strides_of(shape)
        return IndexMap(tuple(np.arange(shape[d]) * strides[d] for d in self.dims))

    def move(self, *inputs: np.ndarray) -> np.ndarray:
        return np.transpose(inputs[0], self.dims).copy()


@dataclass(frozen=True)
class Slice(Indexed):
    """Along each axis ``sizes`` elements from ``starts`` on, every ``steps``-th; a step may be
    negative.  All elements are inside the input."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        self.require(
            is_ints(self.starts, 0)
            and is_ints(self.sizes, 0)
            and is_ints(self.steps)
            and len(self.starts) == len(self.sizes) == len(self.steps),
            "valid is a start and a size of at least 0 and a step for each axis",
        )

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        self.require(
            len(shape) == len(self.sizes),
            f"input has shape {shape}; valid is rank {len(self.sizes)}",
        )
        for axis, (start, size, step, extent) in enumerate(
            zip(self.starts, self.sizes, self.steps, shape, strict=True)
        ):
            last = start + (size - 1) * step
            self.require(
                size == 0 or (start < extent and 0 <= last < extent),
                f"elements {start} to {last} of axis {axis} are not all inside the input {shape}",
            )
        return self.sizes

    def index_map(self, shape: tuple[int, ...]) -> IndexMap:
        axes = zip(self.starts, self.sizes, self.steps, strides_of(shape), strict=True)
        return IndexMap(tuple((begin + np.arange(n) * step) * s for begin, n, step, s in axes))


@dataclass(frozen=True)
class Expand(Indexed):
    """Broadcasts to ``shape``: repeats axes of size 1, and adds axes before the first one."""

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.require(
            is_ints(self.shape, 0),
            f"shape={self.shape}; valid are non-negative sizes",
        )

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        padded = (1,) * (len(self.shape) - len(shape)) + shape
        self.require(
            len(shape) <= len(self.shape)
            and all(a in (1, b) for a, b in zip(padded, self.shape, strict=True)),
            f"input of shape {shape} cannot be repeated to it; valid are equal sizes, or 1",
        )
        return self.shape

    def index_map(self, shape: tuple[int, ...]) -> IndexMap:
        padded = (1,) * (len(self.shape) - len(shape)) + shape
        axes = zip(padded, self.shape, strides_of(padded), strict=True)
        return IndexMap(tuple(np.arange(new) * (s if old > 1 else 0) for old, new, s in axes))


@dataclass(frozen=True)
class Pad(Indexed):
    """Adds ``before`` and ``after`` elements to each axis: ``value`` (constant), the outermost
    element (edge), mirrored ones without the outermost (reflect), or the other end's (wrap)."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0

    def __post_init__(self) -> None:
        self.require(
            is_ints(self.before, 0)
            and is_ints(self.after, 0)
            and len(self.before) == len(self.after),
            f"before={self.before}, after={self.after}; valid are two ints of at least 0 an axis",
        )
        modes = ("constant", "edge", "reflect", "wrap")
        self.require(self.mode in modes, f"mode={self.mode!r}; valid are {', '.join(modes)}")
        self.require_number("value", self.value)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        _require_value_of(self, self.value, inputs)
        return super().infer(*inputs)

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        self.require(
            len(shape) == len(self.before),
            f"input has shape {shape}; valid is rank {len(self.before)}",
        )
        for axis, size in enumerate(shape):
            grows = self.before[axis] + self.after[axis] > 0
            self.require(
                self.mode == "constant" or size > 0 or not grows,
                f"axis {axis} of the input {shape} has no elements to repeat",
            )
        added = zip(shape, self.before, self.after, strict=True)
        return tuple(size + before + after for size, before, after in added)

    def index_map(self, shape: tuple[int, ...]) -> IndexMap:
        offsets = []
        for size, before, after, stride in zip(
            shape, self.before, self.after, strides_of(shape), strict=True
        ):
            position = np.arange(-before, size + after)
            inside = (position >= 0) & (position < size)
            if self.mode == "constant":
                offsets.append(np.where(inside, position * stride, OUTSIDE))
            else:
                offsets.append(_wrapped(position, size, self.mode) * stride)
        return IndexMap(tuple(offsets), fill=self.value)


def _require_value_of(op: Pad | Take, value: float, inputs: tuple[TensorType, ...]) -> None:
    """Requires that the input's dtype represents ``value``; integers have no NaN and infinities."""
    (x,) = op.operands(inputs)
    if x.dtype in INTEGERS:
        bounds = np.iinfo(x.dtype)
        op.require(
            isfinite(value) and int(value) == value and bounds.min <= int(value) <= bounds.max,
            f"value={value!r} of an input {x}; valid are numbers of {x.dtype}",
        )


def _wrapped(position: np.ndarray, size: int, mode: str) -> np.ndarray:
    """Positions beyond an axis mapped into it, as the mode of :class:`Pad` says."""
    if mode == "edge" or size <= 1:
        return np.clip(position, 0, max(size - 1, 0))
    if mode == "wrap":
        return position % size
    period = 2 * (size - 1)
    folded = position % period
    return np.minimum(folded, period - folded)


@dataclass(frozen=True)
class Take(Indexed):
    """The elements with the given indices along each axis, and ``value`` for an index of -1; None
    takes all elements of an axis."""

    indices: tuple[tuple[int, ...] | None, ...]
    value: float = 0.0

    def __post_init__(self) -> None:
        valid = isinstance(self.indices, tuple) and all(
            chosen is None or is_ints(chosen, -1) for chosen in self.indices
        )
        if not valid:  # without the operator's own text, which counts indices
            raise GraphError(
                f"Take: indices={self.indices!r:.80}; valid is a tuple with, for each axis, None "
                "or a tuple of ints of at least -1"
            )
        self.require_number("value", self.value)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        _require_value_of(self, self.value, inputs)
        return super().infer(*inputs)

    def __str__(self) -> str:
        sizes = ", ".join("all" if axis is None else str(len(axis)) for axis in self.indices)
        return f"Take({sizes})"

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        self.require(
            len(shape) == len(self.indices),
            f"input has shape {shape}; valid is rank {len(self.indices)}",
        )
        for axis, (size, chosen) in enumerate(zip(shape, self.indices, strict=True)):
            largest = max(chosen or (0,))
            self.require(
                not chosen or largest < size or largest == -1,
                f"index {largest} is beyond axis {axis} of the input {shape}",
            )
        pairs = zip(shape, self.indices, strict=True)
        return tuple(size if chosen is None else len(chosen) for size, chosen in pairs)

    def index_map(self, shape: tuple[int, ...]) -> IndexMap:
        offsets = []
        for size, chosen, stride in zip(shape, self.indices, strides_of(shape), strict=True):
            indices = np.arange(size) if chosen is None else np.array(chosen, np.int64)
            offsets.append(np.where(indices < 0, OUTSIDE, indices * stride))
        return IndexMap(tuple(offsets), fill=self.value)


@dataclass(frozen=True)
class Unfold2d(Indexed):
    """The windows of (N, C, H, W) as a tensor: (N, C, KH, KW, rows, columns)."""

    kernel_size: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)

    def __post_init__(self) -> None:
        for name in ("kernel_size", "stride", "dilation"):
            self.require_pair(name, getattr(self, name), 1)

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        self.require(len(shape) == 4, f"input has shape {shape}; valid is rank 4")
        sizes = []
        for size, kernel, stride, dilation in zip(
            shape[2:], self.kernel_size, self.stride, self.dilation, strict=True
        ):
            reach = dilation * (kernel - 1) + 1
            self.require(reach <= size, f"a window of {reach} is larger than the input {shape}")
            sizes.append((size - reach) // stride + 1)
        return (*shape[:2], *self.kernel_size, *sizes)

    def index_map(self, shape: tuple[int, ...]) -> IndexMap:
        *_, rows, columns = self.shape_of(shape)
        batch, channels, row_stride, column_stride = strides_of(shape)
        counts = (shape[0], shape[1], *self.kernel_size, rows, columns)
        steps = (
            batch,
            channels,
            row_stride * self.dilation[0],
            column_stride * self.dilation[1],
            row_stride * self.stride[0],
            column_stride * self.stride[1],
        )
        return IndexMap(tuple(np.arange(n) * s for n, s in zip(counts, steps, strict=True)))


@dataclass(frozen=True)
class Gather(Movement):
    """The elements of ``axis`` at the indices, whose axes replace that axis.

    The first ``batch`` axes of the input and of the indices are common: each of their positions has
    indices of its own.  Negative indices count from the end; an index that is still beyond the axis
    is clamped to it.
    """

    axis: int = 0
    batch: int = 0

    operand_names = ("input", "indices")

    def __post_init__(self) -> None:
        self.require_int("axis", self.axis)
        self.require_int("batch", self.batch)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, indices = self.operands(inputs)
        axis = _axis_with_indices(self, x, indices)
        self.require(
            x.shape[axis] > 0 or indices.size == 0,
            f"axis {axis} of the input {x.shape} has no elements to take",
        )
        index_shape = indices.shape[self.batch :]
        return (x.with_shape((*x.shape[:axis], *index_shape, *x.shape[axis + 1 :])),)

    def move(self, *inputs: np.ndarray) -> np.ndarray:
        x, indices = inputs
        if not self.batch:
            return np.take(x, _inside(indices, x.shape[self.axis]), axis=self.axis)
        axis = self.axis % x.ndim
        (images, outer, size, inner) = split_axes(x.shape, axis, self.batch)
        positions = _inside(indices, size).reshape(images, 1, -1, 1)
        taken = np.take_along_axis(x.reshape(images, outer, size, inner), positions, axis=2)
        index_shape = indices.shape[self.batch :]
        return taken.reshape(*x.shape[:axis], *index_shape, *x.shape[axis + 1 :])


@dataclass(frozen=True)
class ScatterAdd(Reduction):
    """Scatters elements by indices, and sums those with equal ones: the gradient of
    :class:`Gather`.

    ``axis`` gets ``size`` elements; each is the sum of the elements that have its index, added one
    after the other in the order of the indices.
    """

    size: int
    axis: int = 0
    batch: int = 0

    operand_names = ("input", "indices")

    def __post_init__(self) -> None:
        for name in ("size", "axis", "batch"):
            self.require_int(name, getattr(self, name))
        self.require(self.size >= 1, f"size={self.size}; valid is at least 1")
        self.require(self.axis >= 0, f"axis={self.axis}; valid is an int of at least 0")

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, indices = self.operands(inputs)
        self.require_float(x)
        index_shape = indices.shape[self.batch :]
        end = self.axis + len(index_shape)
        self.require(
            x.shape[self.axis : end] == index_shape and end <= x.rank,
            f"indices have shape {indices.shape}; valid are those of the input {x.shape} from "
            f"axis {self.axis} on, after the batch",
        )
        result = x.with_shape((*x.shape[: self.axis], self.size, *x.shape[end:]))
        _axis_with_indices(self, result, indices)
        return (result,)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, indices = inputs
        index_shape = indices.shape[self.batch :]
        shape = (*x.shape[: self.axis], self.size, *x.shape[self.axis + len(index_shape) :])
        (images, outer, size, inner) = split_axes(shape, self.axis, self.batch)
        sums = np.zeros((images, size, outer, inner), x.dtype)
        terms = x.reshape(images, outer, prod(index_shape), inner).swapaxes(1, 2)
        positions = _inside(indices, size).reshape(images, -1)
        for image in range(images):
            np.add.at(sums[image], positions[image], terms[image])
        return (sums.swapaxes(1, 2).reshape(shape),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return inputs[0].size


def split_axes(shape: tuple[int, ...], axis: int, batch: int) -> tuple[int, int, int, int]:
    """The number of elements of four groups of axes: the first ``batch`` ones, those between them
    and ``axis``, ``axis`` itself, and all after it."""
    return prod(shape[:batch]), prod(shape[batch:axis]), shape[axis], prod(shape[axis + 1 :])


def _axis_with_indices(op: Gather | ScatterAdd, x: TensorType, indices: TensorType) -> int:
    """The axis, counted from 0; GraphError unless the indices fit it."""
    op.require(
        -x.rank <= op.axis < x.rank,
        f"axis={op.axis} is not an axis of the input {x.shape}; valid are {-x.rank} to "
        f"{x.rank - 1}",
    )
    op.require(
        indices.dtype in INTEGERS,
        f"indices have dtype {indices.dtype}; valid are {', '.join(INTEGERS)}",
    )
    axis = op.axis % x.rank
    op.require(0 <= op.batch <= axis, f"batch={op.batch}; valid are 0 to axis {axis}")
    op.require(
        x.shape[: op.batch] == indices.shape[: op.batch],
        f"indices have shape {indices.shape}; valid begins with {x.shape[: op.batch]}",
    )
    return axis


def _inside(indices: np.ndarray, size: int) -> np.ndarray:
    """Indices counted from the beginning, and clamped to an axis of ``size`` elements."""
    return np.clip(np.where(indices < 0, indices + size, indices), 0, max(size - 1, 0))
