"""Checks of arrays before they reach cuDNN, and layouts derived from their strides.

The binding's own functions take arrays whose *logical* order of dimensions is N, C, spatial...;
the memory order follows from the strides.  An NHWC array ``a`` is passed as
``a.transpose(0, 3, 1, 2)``, which copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from minidnn.cudnn.dtypes import data_type, is_double, scalar
from minidnn.cudnn.enums import TensorFormat
from minidnn.cudnn.errors import ArgumentError, DTypeError
from minidnn.gpu import cupy

MAX_DIMENSIONS = 8  # CUDNN_DIM_MAX

Shape = tuple[int, ...]


def check_array(name: str, array: Any, device: int | None = None) -> None:
    """Raise unless ``array`` is a non-empty CuPy array on ``device`` (default: the current one)."""
    module = cupy()
    if not isinstance(array, module.ndarray):
        raise ArgumentError(
            f"{name} must be a CuPy array, got {type(array).__module__}."
            f"{type(array).__qualname__}; use cupy.asarray"
        )
    if device is None:
        device = module.cuda.runtime.getDevice()
    if array.data.device_id != device:
        raise ArgumentError(
            f"{name} is on device {array.data.device_id}, but the current device is {device}; "
            f"copy it there or use 'with cupy.cuda.Device({array.data.device_id})'"
        )
    if array.size == 0:
        raise ArgumentError(f"{name} has no elements (shape {array.shape}); cuDNN takes none")


def check_same_dtype(first: str, one: Any, second: str, other: Any) -> None:
    """Raise unless both arrays have one dtype."""
    if one.dtype != other.dtype:
        raise DTypeError(
            f"{second} has dtype {other.dtype.name}, but {first} has {one.dtype.name}; "
            "they must be equal"
        )


def check_same_shape(first: str, one: Any, second: str, other: Any) -> None:
    """Raise unless both arrays have one shape."""
    if one.shape != other.shape:
        raise ArgumentError(
            f"{second} has shape {other.shape}, but {first} has {one.shape}; they must be equal"
        )


def element_strides(name: str, array: Any) -> Shape:
    """Return the strides in elements; raise when cuDNN cannot express them."""
    itemsize = array.itemsize
    strides = []
    for stride in array.strides:
        if stride < 0 or stride % itemsize:
            raise ArgumentError(
                f"{name} has strides {array.strides} bytes; cuDNN takes only non-negative "
                "multiples of the element size, use cupy.ascontiguousarray"
            )
        strides.append(stride // itemsize)
    return tuple(strides)


def packed_strides(shape: Shape, channels_last: bool = False) -> Shape:
    """Return the strides of a dense array: row-major, or with dimension 1 innermost in memory."""
    order = list(range(len(shape)))
    if channels_last and len(shape) > 2:
        order = [0, *range(2, len(shape)), 1]
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def layouts(shape: Shape, strides: Shape) -> tuple[TensorFormat, ...]:
    """Return the dense layouts that the array has, NCHW before NHWC; extents of 1 fit both."""
    found = []
    for layout in (TensorFormat.CUDNN_TENSOR_NCHW, TensorFormat.CUDNN_TENSOR_NHWC):
        packed = packed_strides(shape, layout == TensorFormat.CUDNN_TENSOR_NHWC)
        if all(e == 1 or s == p for e, s, p in zip(shape, strides, packed, strict=True)):
            found.append(layout)
    return tuple(found)


def settled_strides(shape: Shape, strides: Shape, prefer: TensorFormat | None = None) -> Shape:
    """Return the strides, with those of extent-1 dimensions set to what cuDNN expects.

    Such strides are arbitrary, but cuDNN recognises layouts by them.  A dense array gets the
    strides of its layout (of ``prefer`` where it has both); others the distance to the next
    dimension.
    """
    have = layouts(shape, strides)
    if have:
        layout = prefer if prefer in have else have[0]
        return packed_strides(shape, layout == TensorFormat.CUDNN_TENSOR_NHWC)
    settled = list(strides)
    step = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            settled[axis] = step
        step = max(step, shape[axis] * settled[axis])
    return tuple(settled)


def per_axis(name: str, value: Any, count: int, least: int) -> Shape:
    """Return ``count`` integers of at least ``least``, from one integer or one for each axis."""
    if isinstance(value, int) and value >= least:  # the fast path, as every call comes here
        return (value,) * count
    try:
        values = value if isinstance(value, Sequence) else (value,) * count
        numbers = tuple(map(index, values))
    except TypeError:
        raise ArgumentError(f"{name}={value!r} must be an integer or {count} integers") from None
    if len(numbers) != count or any(number < least for number in numbers):
        raise ArgumentError(
            f"{name}={value!r} must be {count} integers of at least {least}, one for each "
            "spatial dimension"
        )
    return numbers


def at_least_4d(shape: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """Append dimensions of extent 1 until there are four, the least that cuDNN takes."""
    missing = max(0, 4 - len(shape))
    if len(shape) > MAX_DIMENSIONS:
        raise ArgumentError(
            f"an array of {len(shape)} dimensions (shape {shape}) is too much for cuDNN, "
            f"which takes {MAX_DIMENSIONS}"
        )
    return shape + (1,) * missing, strides + (1,) * missing


def check_writable(name: str, array: Any) -> None:
    """Raise when two elements of the output share memory (a broadcast array, say)."""
    if array.flags.c_contiguous:
        return
    if overlaps(array.shape, array.strides, array.itemsize):
        raise ArgumentError(
            f"{name} is written to, but its elements overlap in memory "
            f"(shape {array.shape}, strides {array.strides} bytes)"
        )


def overlaps(shape: Shape, strides: Shape, element: int = 1) -> bool:
    """Return whether elements share memory; ``element`` is the size of one, in units of strides.

    (It is also True for a few interleaved layouts that share no memory.)
    """
    reach = element
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent > 1:
            if stride < reach:
                return True
            reach += stride * (extent - 1)
    return False


def empty(shape: Shape, dtype: Any, channels_last: bool = False) -> Any:
    """Return a new CuPy array of the logical ``shape``; ``channels_last`` is the memory order."""
    module = cupy()
    if not channels_last or len(shape) < 3:
        return module.empty(shape, dtype)
    stored = module.empty((shape[0], *shape[2:], shape[1]), dtype)
    return stored.transpose(0, len(shape) - 1, *range(1, len(shape) - 1))


def empty_like(array: Any, shape: Shape | None = None) -> Any:
    """Return a new array in the layout of ``array``: channels-last only where that is dense so."""
    strides = tuple(stride // array.itemsize for stride in array.strides)
    have = layouts(array.shape, strides)
    return empty(shape or array.shape, array.dtype, have == (TensorFormat.CUDNN_TENSOR_NHWC,))


def check_inputs(**arrays: Any) -> None:
    """Raise unless all are CuPy arrays of the current device, alike in dtype and shape."""
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
