"""Sums, means, products, variances and extremes over axes, indices of maxima, softmax, layer and
group normalization."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from minidnn.graph.expression import argument, fma, linearize, run
from minidnn.graph.operator import Reduction, is_ints
from minidnn.graph.types import FLOATS, ITEMSIZE, NUMBERS, TensorType

__all__ = ["ArgMax", "GroupNorm", "LayerNorm", "LogSoftmax", "Reduce", "Softmax", "Variance"]

_JOINS: dict[str, Any] = {
    "sum": np.sum,
    "mean": np.sum,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
}


def _in_rows(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """``x`` with the axes ``axes`` merged into one, which is last and contiguous in memory.

    NumPy sums contiguous rows pairwise, but other axes one element after another.  As the order
    depends on strides, equal inputs with other strides would give other bits.
    """
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    shape = (*(x.shape[axis] for axis in kept), prod(x.shape[axis] for axis in axes))
    return np.ascontiguousarray(x.transpose(*kept, *axes)).reshape(shape)


@dataclass(frozen=True)
class Reduce(Reduction):
    """The sum, mean, maximum, minimum or product over the axes ``dims`` (from 0 on, in order).

    NaN wins.  With ``keepdim`` these axes stay, with size 1.  ``dtype`` is that of the result, if
    it is not the input's: sums of half precision need not be rounded to half precision.

    ``first`` decides the gradient of an extreme along one axis: the first of the elements that
    equal it gets all of it; otherwise they share it evenly."""

    how: Literal["sum", "mean", "max", "min", "prod"]
    dims: tuple[int, ...]
    keepdim: bool = False
    dtype: str | None = None
    first: bool = False

    def __post_init__(self) -> None:
        self.require(self.how in _JOINS, f"how={self.how!r}; valid are {', '.join(_JOINS)}")
        self.require(
            is_ints(self.dims, 0) and list(self.dims) == sorted(set(self.dims)),
            f"dims={self.dims}; valid are different axes from 0 on, in order",
        )
        self.require(
            self.dtype in (None, "float32", "float64"),
            f"dtype={self.dtype!r}; valid are 'float32', 'float64' and None",
        )
        self.require(
            not self.first or (self.how in ("max", "min") and len(self.dims) == 1),
            f"first={self.first} of how={self.how!r}, dims={self.dims}; valid is it of 'max' and "
            "'min' along one axis",
        )

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = self.operands(inputs)
        self.require(x.dtype in NUMBERS, f"input is {x}; valid are {', '.join(NUMBERS)}")
        self.require(
            x.dtype in FLOATS or self.how != "mean",
            f"input is {x}; the mean of integers is none; valid are {', '.join(FLOATS)}",
        )
        self.require(
            max(self.dims, default=-1) < x.rank,
            f"input has shape {x.shape}; valid are axes 0 to {x.rank - 1}",
        )
        self.require(
            self.how in ("sum", "prod") or all(x.shape[d] for d in self.dims),
            f"input {x.shape} has no elements along {self.dims}",
        )
        result = self.dtype or x.dtype
        self.require(
            result == x.dtype or (x.dtype in FLOATS and ITEMSIZE[x.dtype] <= ITEMSIZE[result]),
            f"input is {x}; valid for dtype={self.dtype!r} are floating-point dtypes no wider",
        )
        sizes = [1 if d in self.dims else size for d, size in enumerate(x.shape)]
        kept = [size for d, size in enumerate(sizes) if self.keepdim or d not in self.dims]
        return (TensorType(tuple(kept), result),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        compute = x.dtype if x.dtype.kind == "i" else np.result_type(x.dtype, np.float32)
        rows = _in_rows(x.astype(compute, copy=False), self.dims)
        with np.errstate(all="ignore"):
            out = _JOINS[self.how](rows, axis=-1)
            if self.how == "mean":
                out = out / compute.type(rows.shape[-1])
        if self.keepdim:
            out = np.expand_dims(out, self.dims)
        return (np.asarray(out, np.result_type(x.dtype, self.dtype or x.dtype)),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return inputs[0].size


@dataclass(frozen=True)
class Variance(Reduction):
    """The variance of each channel of (N, C, ...) over all other axes, given the mean.

    The result and the mean are vectors (C,), and the mean must be that of the same elements.
    ``dtype`` is that of the result, as in :class:`Reduce`; the mean has it, too.  The gradient
    relies on the mean being exact: to first order, the result does not change with it.
    """

    dtype: str | None = None

    operand_names = ("input", "mean")

    def __post_init__(self) -> None:
        valid = (None, "float32", "float64")
        self.require(
            self.dtype in valid, f"dtype={self.dtype!r}; valid are 'float32', 'float64' and None"
        )

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, mean = self.operands(inputs)
        self.require_float(x)
        self.require(x.rank >= 2, f"input has shape {x.shape}; valid is (N, C, ...)")
        self.require(x.size > 0, f"input {x.shape} has no elements")
        result = TensorType((x.shape[1],), self.dtype or x.dtype)
        self.require(
            ITEMSIZE[x.dtype] <= ITEMSIZE[result.dtype],
            f"input is {x}; valid for dtype={self.dtype!r} are floating-point dtypes no wider",
        )
        self.require(mean == result, f"mean is {mean}; valid is {result}")
        return (result,)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, mean = inputs
        compute = np.result_type(x.dtype, mean.dtype, np.float32)
        rows = _in_rows(x.astype(compute, copy=False), (0, *range(2, x.ndim)))
        with np.errstate(all="ignore"):
            squares = np.square(rows - mean.astype(compute)[:, None])
            out = squares.sum(axis=-1) / compute.type(rows.shape[-1])
        return (out.astype(np.result_type(x.dtype, mean.dtype)),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 3 * inputs[0].size


@dataclass(frozen=True)
class ArgMax(Reduction):
    """The index (int64) of the largest element along ``dim``: of several equal ones the first, or
    the last.

    NaN counts as the largest.
    """

    dim: int
    keepdim: bool = False
    last: bool = False

    def __post_init__(self) -> None:
        self.require_int("dim", self.dim)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = self.operands(inputs)
        self.require(x.dtype in NUMBERS, f"input is {x}; valid are {', '.join(NUMBERS)}")
        self.require(
            -x.rank <= self.dim < x.rank and x.shape[self.dim] > 0,
            f"dim={self.dim} of the input {x.shape}; valid is an axis from {-x.rank} to "
            f"{x.rank - 1} that has elements",
        )
        axis = self.dim % x.rank
        middle = (1,) if self.keepdim else ()
        return (TensorType((*x.shape[:axis], *middle, *x.shape[axis + 1 :]), "int64"),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        if self.last:
            index = x.shape[self.dim] - 1 - np.argmax(np.flip(x, self.dim), self.dim)
        else:
            index = np.argmax(x, self.dim)
        result = np.expand_dims(index, self.dim) if self.keepdim else index
        return (np.asarray(result, np.int64),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return inputs[0].size


@dataclass(frozen=True)
class LayerNorm(Reduction):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last ``axes`` axes.

    The variance is the biased one, divided by the number of elements.  Weight and bias, which may
    be absent, have the shape of the last axes.
    """

    axes: int
    eps: float = 1e-5

    operand_names = ("input", "weight", "bias")
    optional_operands = 2

    def __post_init__(self) -> None:
        self.require_int("axes", self.axes)
        self.require(self.axes >= 1, f"axes={self.axes}; valid is an int of at least 1")
        self.require_number("eps", self.eps)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, *affine = self.operands(inputs)
        self.require_float(*inputs)
        self.require(x.rank >= self.axes, f"input has shape {x.shape}; valid is rank {self.axes}")
        last = x.shape[x.rank - self.axes :]
        for name, value in zip(self.operand_names[1:], affine, strict=False):
            self.require(value.shape == last, f"{name} has shape {value.shape}; valid is {last}")
        return (x,)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, *affine = inputs
        out = _normalized(x, x.shape[: x.ndim - self.axes], self.eps)
        with np.errstate(all="ignore"):
            if affine:
                out = out * affine[0].astype(out.dtype)
            if len(affine) > 1:
                out = out + affine[1].astype(out.dtype)
        return (out.astype(x.dtype, copy=False),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 8 * inputs[0].size


@dataclass(frozen=True)
class GroupNorm(Reduction):
    """``fma((x - mean) / sqrt(var + eps), weight, bias)`` of (N, C, ...).

    An image's channels are divided into ``groups`` groups of equal size, and mean and variance are
    taken over each group: over all channels if ``groups`` is 1, over each channel if it is C.
    Weight and bias, which may both be absent, have the shape (C,).
    """

    groups: int
    eps: float = 1e-5

    operand_names = ("input", "weight", "bias")
    optional_operands = 2

    def __post_init__(self) -> None:
        self.require_int("groups", self.groups)
        self.require(self.groups >= 1, f"groups={self.groups}; valid is an int of at least 1")
        self.require_number("eps", self.eps)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, *affine = self.operands(inputs)
        self.require_float(*inputs)
        self.require(
            len(affine) != 1, "it has a weight alone; valid are weight and bias, or neither"
        )
        self.require(x.rank >= 2, f"input has shape {x.shape}; valid is (N, C, ...)")
        channels = x.shape[1]
        self.require(
            channels % self.groups == 0,
            f"groups={self.groups} of an input {x.shape}; valid are divisors of its {channels} "
            "channels",
        )
        for name, value in zip(self.operand_names[1:], affine, strict=False):
            valid = (channels,)
            self.require(value.shape == valid, f"{name} has shape {value.shape}; valid is {valid}")
        return (x,)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, *affine = inputs
        out = _normalized(x, (x.shape[0], self.groups), self.eps)
        if affine:
            shape = (-1, *(1 for _ in x.shape[2:]))
            vectors = (vector.reshape(shape).astype(out.dtype) for vector in affine)
            code = linearize(fma(argument(0), argument(1), argument(2)))
            out = run(code, [out, *vectors])
        return (out.astype(x.dtype, copy=False),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 8 * inputs[0].size


def _normalized(x: np.ndarray, kept: tuple[int, ...], eps: float) -> np.ndarray:
    """``x`` normalized over the elements of each position of its leading sizes ``kept``."""
    wide = x.astype(np.result_type(x.dtype, np.float32), copy=False)
    rows = np.ascontiguousarray(wide).reshape(*kept, prod(x.shape) // max(1, prod(kept)))
    count = wide.dtype.type(rows.shape[-1])
    with np.errstate(all="ignore"):
        centred = rows - rows.sum(axis=-1, keepdims=True) / count
        centred -= centred.sum(axis=-1, keepdims=True) / count  # what rounding the mean left
        variance = np.square(centred).sum(axis=-1, keepdims=True) / count
        return (centred / np.sqrt(variance + wide.dtype.type(eps))).reshape(x.shape)


@dataclass(frozen=True)
class _AlongDim(Reduction):
    """The base class of :class:`Softmax` and :class:`LogSoftmax`."""

    dim: int = -1

    def __post_init__(self) -> None:
        self.require_int("dim", self.dim)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = self.operands(inputs)
        self.require_float(x)
        self.require(
            -x.rank <= self.dim < x.rank,
            f"dim={self.dim} is not an axis of the input {x.shape}; "
            f"valid are {-x.rank} to {x.rank - 1}",
        )
        return (x,)

    def _shifted(self, x: np.ndarray) -> np.ndarray:
        """``x`` less its maximum along ``dim``, with ``dim`` moved to the end."""
        rows = _in_rows(x.astype(np.result_type(x.dtype, np.float32)), (self.dim % x.ndim,))
        shifted: np.ndarray = rows - rows.max(axis=-1, keepdims=True, initial=-np.inf)
        return shifted

    def _placed(self, rows: np.ndarray, x: np.ndarray) -> np.ndarray:
        """``rows`` with the last axis moved back to ``dim``, in the dtype of ``x``."""
        return np.moveaxis(rows, -1, self.dim).astype(x.dtype, copy=False)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 17 * inputs[0].size


@dataclass(frozen=True)
class Softmax(_AlongDim):
    """``exp(x - max) / sum(exp(x - max))`` along ``dim``."""

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        with np.errstate(all="ignore"):
            exponentials = np.exp(self._shifted(x))
            out = exponentials / exponentials.sum(axis=-1, keepdims=True)
        return (self._placed(out, x),)


@dataclass(frozen=True)
class LogSoftmax(_AlongDim):
    """``x - max - log(sum(exp(x - max)))`` along ``dim``."""

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        with np.errstate(all="ignore"):
            shifted = self._shifted(x)
            out = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return (self._placed(out, x),)
