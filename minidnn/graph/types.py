"""Tensor types: a logical shape and a dtype, checked once; and conversions between dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from minidnn.errors import GraphError

#: Bytes of one element of each dtype.  NumPy has no bfloat16: the reference computes it in float32.
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
ITEMSIZE |= {"int32": 4, "int64": 8, "bool": 1}
#: Pixels and quantized numbers, which are moved, converted, and multiplied by contractions.  There
#: is no other arithmetic in them, as it would wrap.
ITEMSIZE |= {"uint8": 1, "int8": 1}
INT8_DTYPES = ("int8", "uint8")
HALF_DTYPES = ("float16", "bfloat16")
FLOATS = (*HALF_DTYPES, "float32", "float64")
INTEGERS = ("int32", "int64")
NUMBERS = (*FLOATS, *INTEGERS)


@dataclass(frozen=True, slots=True)
class TensorType:
    """The shape of a value, in logical order (batch, channels, rows, columns), and its dtype."""

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
        """The number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]

    @property
    def plane(self) -> tuple[int, int, int, int]:
        """The shape as (batch, channels, rows, columns).

        (N, F) is one pixel of F channels, and (N, C, L) is one row.  Beyond four axes, those
        between channels and columns are merged into rows, which element-wise operators cannot tell
        apart.
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
    """The NumPy dtype in which the reference stores values of ``dtype``."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def saturated(dtype: str, array: np.ndarray) -> np.ndarray:
    """An array converted to int8 or uint8: fractions are truncated, numbers out of range become the
    least or largest one, and NaN becomes the least."""
    bounds = np.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        above_min = np.where(array > bounds.min, array, bounds.min)
        return np.where(above_min < bounds.max, above_min, bounds.max).astype(dtype)


def rounded_to(dtype: str, array: np.ndarray) -> np.ndarray:
    """An array rounded to a floating-point ``dtype``, in the NumPy dtype of :func:`numpy_dtype`.

    It rounds to nearest, ties to even; numbers that are too large become infinite.
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
    """A size or sizes in plain Python: NumPy's ints become ints, and arrays of ints become tuples.

    Tuples, lists and dicts are converted recursively; anything else stays as it is, so that the
    code that checks it can name it in an error.

    >>> plain((np.int64(1), np.uint8(3)))
    (1, 3)
    """
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim < 2:
        return tuple(value.tolist()) if value.ndim else int(value)
    if isinstance(value, (tuple, list)):
        items = [plain(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return value
