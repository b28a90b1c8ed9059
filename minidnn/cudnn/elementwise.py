"""What the functions that keep the shape share: checking arrays, allocating, describing."""

from __future__ import annotations

from typing import Any

from minidnn.cudnn.arrays import (
    check_array,
    check_same_dtype,
    check_same_shape,
    check_writable,
    empty_like,
)
from minidnn.cudnn.dtypes import data_type, is_double
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.scalars import scalar


def check_inputs(**arrays: Any) -> None:
    """Raise unless all are CuPy arrays here, with the dtype and shape of the first."""
    first, one = next(iter(arrays.items()))
    for name, array in arrays.items():
        check_array(name, array)
        if array is not one:
            check_same_dtype(first, one, name, array)
            check_same_shape(first, one, name, array)


def output(name: str, out: Any, like_name: str, like: Any, beta: float) -> Any:
    """Return ``out`` checked against ``like``, or a new array when it is None."""
    if out is None:
        if beta != 0:
            raise ArgumentError(f"beta={beta} adds to {name}, so {name} must be given")
        return empty_like(like)
    check_array(name, out)
    check_same_dtype(like_name, like, name, out)
    check_same_shape(like_name, like, name, out)
    check_writable(name, out)
    return out


def scalars(array: Any, alpha: float, beta: float) -> tuple[Any, Any]:
    """Return pointers to alpha and beta in the type that cuDNN reads for this array."""
    double = is_double(data_type(array.dtype))
    return scalar(alpha, double), scalar(beta, double)
