"""Tensor types: a shape and a dtype, checked once; and sizes, as callers give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from minidnn.errors import GraphError

#: Bytes of one element.  bfloat16 has no NumPy dtype: the reference computes it in float32.
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
ITEMSIZE |= {"int32": 4, "int64": 8, "bool": 1}
#: Pixels and quantized numbers: they are moved, converted and summed up by contractions.  Other
#: arithmetic of bytes would wrap, and there is none.
ITEMSIZE |= {"uint8": 1, "int8": 1}
BYTES = ("int8", "uint8")
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
INTEGERS = ("int32", "int64")
NUMBERS = (*FLOATS, *INTEGERS)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape (logical layout: batch, channels, rows, columns) and dtype of a value."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in ITEMSIZE:
            raise GraphError(f"dtype={self.dtype!r} is not one of {', '.join(ITEMSIZE)}")
        for size in self.shape:
            if type(size) is not int or size < 0:
                self._check_sizes()
                break

    def _check_sizes(self) -> None:
        object.__setattr__(self, "shape", plain(self.shape))
        for size in self.shape:
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise GraphError(
                    f"shape={self.shape!r}: every size must be a non-negative int, got {size!r}"
                )

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]

    @property
    def plane(self) -> tuple[int, int, int, int]:
        """The shape as (batch, channels, rows, columns).

        (N, F) is one pixel of F channels; (N, C, L) one row; beyond four dimensions the
        middle ones are joined, which point-wise operators cannot tell apart.
        """
        match self.shape:
            case ():
                return (1, 1, 1, 1)
            case (channels,):
                return (1, channels, 1, 1)
            case (batch, channels):
                return (batch, channels, 1, 1)
            case (batch, channels, columns):
                return (batch, channels, 1, columns)
            case (batch, channels, *rows, columns):
                return (batch, channels, prod(rows), columns)
        raise AssertionError("unreachable")

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(tuple(shape), self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def numpy_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype in which the reference holds ``dtype``."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def saturated(dtype: str, array: np.ndarray) -> np.ndarray:
    """An array's numbers as int8 or uint8, fractions cut off: the nearest that there is of those
    that are too small or too large, and the least of NaN."""
    bounds = np.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        least = np.where(array > bounds.min, array, bounds.min)
        return np.where(least < bounds.max, least, bounds.max).astype(dtype)


def rounded_to(dtype: str, array: np.ndarray) -> np.ndarray:
    """An array's numbers rounded to a floating-point ``dtype``, as the reference holds them.

    To the nearest, ties to even; what is too large becomes infinite.
    """
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return array.astype(numpy_dtype(dtype))
        single = np.asarray(array, np.float32, order="C")  # which keeps rank 0
        bits = single.view(np.uint32)
        upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
            0xFFFF0000
        )
        return np.where(np.isnan(single), single, upper.view(np.float32))


def plain(value: Any) -> Any:
    """A size, or sizes, as Python has them: NumPy's ints become ints, arrays of them tuples.

    Tuples, lists and dicts are gone through; whatever else there is stays as it is, so that who
    checks it can say what is wrong with it.

    >>> plain((np.int64(1), np.uint8(3)))
    (1, 3)
    """
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim < 2:
        return tuple(value.tolist()) if value.ndim else int(value)
    if isinstance(value, (tuple, list)):
        each = [plain(one) for one in value]
        return each if isinstance(value, list) else tuple(each)
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return value
