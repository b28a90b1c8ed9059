"""Sums, means and extremes over axes, the places of maxima, softmax, layer normalization."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from minidnn.graph.operator import Reduction, is_ints
from minidnn.graph.types import FLOATS, NUMBERS, TensorType

__all__ = ["ArgMax", "LayerNorm", "LogSoftmax", "Reduce", "Softmax"]

_JOINS: dict[str, Any] = {
    "sum": np.sum,
    "mean": np.sum,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
}


@dataclass(frozen=True)
class Reduce(Reduction):
    """Joins all elements along ``dims`` (from 0 on, in order): their sum, mean, maximum, minimum
    or product.  NaN wins.  With ``keepdim`` these axes stay, with size 1."""

    how: Literal["sum", "mean", "max", "min", "prod"]
    dims: tuple[int, ...]
    keepdim: bool = False

    def __post_init__(self) -> None:
        self.require(self.how in _JOINS, f"how={self.how!r}; valid are {', '.join(_JOINS)}")
        self.require(
            is_ints(self.dims, 0) and list(self.dims) == sorted(set(self.dims)),
            f"dims={self.dims}; valid are different axes from 0 on, in order",
        )

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = self.operands(inputs)
        self.require(x.dtype in NUMBERS, f"input is {x}; valid are {', '.join(NUMBERS)}")
        self.require(
            x.dtype in FLOATS or self.how != "mean",
            f"input is {x}; the mean of whole numbers is none; valid are {', '.join(FLOATS)}",
        )
        self.require(
            max(self.dims, default=-1) < x.rank,
            f"input has shape {x.shape}; valid are axes 0 to {x.rank - 1}",
        )
        self.require(
            self.how in ("sum", "prod") or all(x.shape[d] for d in self.dims),
            f"input {x.shape} has no elements along {self.dims}",
        )
        sizes = [1 if d in self.dims else size for d, size in enumerate(x.shape)]
        kept = [size for d, size in enumerate(sizes) if self.keepdim or d not in self.dims]
        return (x.with_shape(tuple(kept)),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        compute = x.dtype if x.dtype.kind == "i" else np.result_type(x.dtype, np.float32)
        # NumPy adds in an order that depends on strides: equal inputs must give equal bits.
        wide = np.ascontiguousarray(x, compute).reshape(x.shape)
        with np.errstate(all="ignore"):
            out = _JOINS[self.how](wide, axis=self.dims, keepdims=self.keepdim)
            if self.how == "mean":
                out = out / compute.type(prod(x.shape[d] for d in self.dims))
        return (np.asarray(out, x.dtype),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return inputs[0].size


@dataclass(frozen=True)
class ArgMax(Reduction):
    """The index (int64) of the largest element along ``dim``: of several the first, or the last.

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
            place = x.shape[self.dim] - 1 - np.argmax(np.flip(x, self.dim), self.dim)
        else:
            place = np.argmax(x, self.dim)
        found = np.expand_dims(place, self.dim) if self.keepdim else place
        return (np.asarray(found, np.int64),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return inputs[0].size


@dataclass(frozen=True)
class LayerNorm(Reduction):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last ``axes`` axes.

    The variance is that of these elements, not an estimate of others'.  Weight and bias, which may
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
        x, *rest = self.operands(inputs)
        self.require_float(*inputs)
        self.require(x.rank >= self.axes, f"input has shape {x.shape}; valid is rank {self.axes}")
        last = x.shape[x.rank - self.axes :]
        for name, value in zip(self.operand_names[1:], rest, strict=False):
            self.require(value.shape == last, f"{name} has shape {value.shape}; valid is {last}")
        return (x,)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, *rest = inputs
        wide = np.ascontiguousarray(x, np.result_type(x.dtype, np.float32)).reshape(x.shape)
        over = tuple(range(x.ndim - self.axes, x.ndim))
        with np.errstate(all="ignore"):
            apart = wide - wide.mean(axis=over, keepdims=True)
            variance = np.square(apart).mean(axis=over, keepdims=True)
            out = apart / np.sqrt(variance + wide.dtype.type(self.eps))
            if rest:
                out = out * rest[0].astype(wide.dtype)
            if len(rest) > 1:
                out = out + rest[1].astype(wide.dtype)
        return (out.astype(x.dtype, copy=False),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 8 * inputs[0].size


@dataclass(frozen=True)
class _AlongDim(Reduction):
    """What :class:`Softmax` and :class:`LogSoftmax` share.  Neither is a kind of the other."""

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

    def _shifted(self, x: np.ndarray) -> Any:
        # NumPy adds in an order that depends on strides: equal inputs must give equal bits.
        x = np.ascontiguousarray(x, np.result_type(x.dtype, np.float32))
        return x - x.max(axis=self.dim, keepdims=True, initial=-np.inf)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 17 * inputs[0].size


@dataclass(frozen=True)
class Softmax(_AlongDim):
    """``exp(x - max) / sum(exp(x - max))`` along ``dim``."""

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        with np.errstate(all="ignore"):
            powers = np.exp(self._shifted(x))
            out = powers / powers.sum(axis=self.dim, keepdims=True)
        return (out.astype(x.dtype, copy=False),)


@dataclass(frozen=True)
class LogSoftmax(_AlongDim):
    """``x - max - log(sum(exp(x - max)))`` along ``dim``."""

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        with np.errstate(all="ignore"):
            shifted = self._shifted(x)
            out = shifted - np.log(np.exp(shifted).sum(axis=self.dim, keepdims=True))
        return (out.astype(x.dtype, copy=False),)
