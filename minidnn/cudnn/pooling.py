"""Pooling: y = alpha * pool(x) + beta * y in 2-d and N-d, and its gradient.

Modes: maximum, deterministic maximum (its gradient does not depend on the order of additions),
average with padding counted, average without.  The output extent is
1 + floor((x + 2 * padding - window) / stride).

Source: cuDNN, ``cudnnPoolingForward``, ``cudnnPoolingBackward``.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, NamedTuple, Self

from minidnn.cudnn.arrays import (
    Shape,
    check_array,
    check_same_dtype,
    check_same_shape,
    check_writable,
    empty_like,
    output,
    per_axis,
    scalars,
)
from minidnn.cudnn.descriptor import Descriptor, Memo
from minidnn.cudnn.dtypes import ints
from minidnn.cudnn.enums import NanPropagation, PoolingMode
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.handle import call
from minidnn.cudnn.tensor import TensorDescriptor, operand

PROPAGATE = NanPropagation.CUDNN_PROPAGATE_NAN
IntOrTuple = int | tuple[int, ...]
RANK = 6  # CUDNN_DIM_MAX without N and C: cuDNN refuses to be asked for more


class PoolingInfo(NamedTuple):
    """What a pooling descriptor holds."""

    mode: PoolingMode
    nan: NanPropagation
    window: Shape
    padding: Shape
    stride: Shape


class PoolingDescriptor(Descriptor):
    """A ``cudnnPoolingDescriptor_t``; ``PoolingDescriptor()`` is not initialised."""

    __slots__ = ()
    KIND = "Pooling"

    @classmethod
    def of(
        cls,
        mode: PoolingMode,
        window: Shape,
        padding: Shape,
        stride: Shape,
        nan: NanPropagation = PROPAGATE,
    ) -> Self:
        """Describe a window of 2 or more dimensions."""
        made = cls()
        if len(window) == 2:
            made.set_2d(mode, nan, window, padding, stride)
        else:
            made.set_nd(mode, nan, window, padding, stride)
        return made

    def set_2d(
        self, mode: PoolingMode, nan: NanPropagation, window: Shape, padding: Shape, stride: Shape
    ) -> None:
        """``cudnnSetPooling2dDescriptor``."""
        arguments = (mode, nan, *window, *padding, *stride)
        context = {"window": window, "padding": padding, "stride": stride}
        self._set("cudnnSetPooling2dDescriptor", *arguments, **context)

    def set_nd(
        self, mode: PoolingMode, nan: NanPropagation, window: Shape, padding: Shape, stride: Shape
    ) -> None:
        """``cudnnSetPoolingNdDescriptor``."""
        arguments = (mode, nan, len(window), ints(window), ints(padding), ints(stride))
        context = {"window": window, "padding": padding, "stride": stride}
        self._set("cudnnSetPoolingNdDescriptor", *arguments, **context)

    def get(self) -> PoolingInfo:
        """``cudnnGetPoolingNdDescriptor``."""
        mode, nan, rank = (ctypes.c_int() for _ in range(3))
        window, padding, stride = (ints([0] * RANK) for _ in range(3))
        numbers = (ctypes.byref(mode), ctypes.byref(nan), ctypes.byref(rank))
        self.call("cudnnGetPoolingNdDescriptor", RANK, *numbers, window, padding, stride)
        n = rank.value
        dims = (tuple(window[:n]), tuple(padding[:n]), tuple(stride[:n]))
        return PoolingInfo(PoolingMode(mode.value), NanPropagation(nan.value), *dims)

    def get_2d(self) -> PoolingInfo:
        """``cudnnGetPooling2dDescriptor``."""
        mode, nan, *dims = self.query_ints("cudnnGetPooling2dDescriptor", 8)
        parts = (tuple(dims[:2]), tuple(dims[2:4]), tuple(dims[4:]))
        return PoolingInfo(PoolingMode(mode), NanPropagation(nan), *parts)

    def output_shape(self, x: TensorDescriptor, rank: int) -> Shape:
        """Return the shape of the output (``cudnnGetPoolingNdForwardOutputDim``)."""
        dims = ints([0] * rank)
        self.call("cudnnGetPoolingNdForwardOutputDim", x.value, rank, dims)
        return tuple(dims)


_cache: Memo[PoolingDescriptor] = Memo(1024)


def _descriptor(*key: Any) -> PoolingDescriptor:
    found = _cache.get(key)
    if found is None:
        found = _cache.put(key, PoolingDescriptor.of(*key))
    return found


def _window(x: Any, window: Any, stride: Any, padding: Any) -> tuple[Shape, Shape, Shape]:
    """Check the window and return (window, padding, stride) with one number per dimension."""
    if x.ndim not in (3, 4, 5):
        raise ArgumentError(f"x has shape {x.shape}; pooling wants (N, C, 1 to 3 spatial dims)")
    n = x.ndim - 2
    given = {
        "window": window,
        "padding": padding,
        "stride": window if stride is None else stride,
    }
    dims = [
        per_axis(name, value, n, 0 if name == "padding" else 1) for name, value in given.items()
    ]
    for axis, (extent, size, pad) in enumerate(zip(x.shape[2:], dims[0], dims[1], strict=True)):
        if pad >= size:
            raise ArgumentError(f"padding={dims[1]} must be below window={dims[0]}")
        if extent + 2 * pad < size:
            raise ArgumentError(
                f"window={dims[0]} is larger than x with its padding: shape {x.shape}, "
                f"padding={dims[1]}, dimension {axis + 2}"
            )
    return dims[0], dims[1], dims[2]


def output_shape(x_shape: Shape, window: Shape, padding: Shape, stride: Shape) -> Shape:
    """Return the shape of the output: 1 + floor((x + 2 * padding - window) / stride)."""
    extents = zip(x_shape[2:], window, padding, stride, strict=True)
    return (*x_shape[:2], *(1 + (e + 2 * p - w) // s for e, w, p, s in extents))


def forward(
    x: Any,
    y: Any = None,
    *,
    mode: PoolingMode = PoolingMode.CUDNN_POOLING_MAX,
    window: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    nan: NanPropagation = PROPAGATE,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """Return y = alpha * pool(x) + beta * y for ``x`` of shape (N, C, ...).

    ``stride`` is the window if None.  ``y`` is new if None, in the layout of ``x``.
    """
    check_array("x", x)
    dims = _window(x, window, stride, padding)
    shape = output_shape(x.shape, *dims)
    if y is None:
        if beta != 0:
            raise ArgumentError(f"beta={beta} adds to y, so y must be given")
        y = empty_like(x, shape)
    else:
        _check_output(x, y, shape)
    one, zero = scalars(x, alpha, beta)
    pool, context = _pool(mode, dims, nan), partial(_context, mode, dims)
    arguments = (pool, one, *operand(x, "x"), zero, *operand(y, "y"))
    call("cudnnPoolingForward", *arguments, context=context, x=x, y=y)
    return y


def backward(
    y: Any,
    dy: Any,
    x: Any,
    dx: Any = None,
    *,
    mode: PoolingMode = PoolingMode.CUDNN_POOLING_MAX,
    window: IntOrTuple,
    stride: IntOrTuple | None = None,
    padding: IntOrTuple = 0,
    nan: NanPropagation = PROPAGATE,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """Return dx = alpha * gradient + beta * dx from the forward pass's ``x``, ``y`` and ``dy``."""
    check_array("x", x)
    dims = _window(x, window, stride, padding)
    check_array("y", y)
    _check_output(x, y, output_shape(x.shape, *dims), writable=False)
    check_array("dy", dy)
    check_same_dtype("y", y, "dy", dy)
    check_same_shape("y", y, "dy", dy)
    dx = output("dx", dx, "x", x, beta)
    one, zero = scalars(x, alpha, beta)
    pool, context = _pool(mode, dims, nan), partial(_context, mode, dims)
    inputs = (*operand(y, "y"), *operand(dy, "dy"), *operand(x, "x"))
    arguments = (pool, one, *inputs, zero, *operand(dx, "dx"))
    call("cudnnPoolingBackward", *arguments, context=context, y=y, dy=dy, x=x, dx=dx)
    return dx


def _check_output(x: Any, y: Any, shape: Shape, writable: bool = True) -> None:
    check_array("y", y)
    check_same_dtype("x", x, "y", y)
    if y.shape != shape:
        raise ArgumentError(f"y has shape {y.shape}, but this pooling of x gives {shape}")
    if writable:
        check_writable("y", y)


def _pool(mode: PoolingMode, dims: tuple[Shape, Shape, Shape], nan: NanPropagation) -> int:
    # One spatial dimension becomes two, as array descriptors get their trailing 1.
    if len(dims[0]) == 1:
        dims = ((*dims[0], 1), (*dims[1], 0), (*dims[2], 1))
    return _descriptor(mode, *dims, nan).value


def _context(mode: PoolingMode, dims: tuple[Shape, Shape, Shape]) -> dict[str, Any]:
    return dict(mode=PoolingMode(mode), window=dims[0], padding=dims[1], stride=dims[2])
