"""CuPy 13's activation, softmax, pooling and dropout functions."""

from __future__ import annotations

import warnings
from math import prod
from typing import Any

from minidnn.cudnn import library
from minidnn.cudnn.activation import activation_descriptor
from minidnn.cudnn.arrays import Shape, at_least_4d, check_array, packed_strides
from minidnn.cudnn.compat.descriptors import (
    NOT_PROPAGATE,
    check_contiguous,
    create_pooling_descriptor,
    get_data_type,
)
from minidnn.cudnn.dropout import DropoutDescriptor, reserve_size, states_size
from minidnn.cudnn.dtypes import DOUBLE_ONE, DOUBLE_ZERO, ONE, ZERO
from minidnn.cudnn.enums import ActivationMode, SoftmaxMode
from minidnn.cudnn.errors import ArgumentError, DTypeError, check
from minidnn.cudnn.handle import call, current_handle
from minidnn.cudnn.tensor import TensorDescriptor, described, flat_descriptor_of
from minidnn.gpu import cupy

INSTANCE = SoftmaxMode.CUDNN_SOFTMAX_MODE_INSTANCE
CHANNEL = SoftmaxMode.CUDNN_SOFTMAX_MODE_CHANNEL


def _one_zero(array: Any) -> tuple[Any, Any]:
    return (DOUBLE_ONE, DOUBLE_ZERO) if array.dtype.char == "d" else (ONE, ZERO)


def _check_alike(**arrays: Any) -> None:
    """Raise unless all arrays are non-empty, on this device, and alike in size and dtype."""
    first, one = next(iter(arrays.items()))
    get_data_type(one.dtype)
    for name, array in arrays.items():
        check_array(name, array)
        if array.size != one.size or array.dtype != one.dtype:
            raise ArgumentError(
                f"{name} has shape {array.shape} and dtype {array.dtype.name}, but {first} has "
                f"{one.shape} and {one.dtype.name}"
            )


def activation_forward(x: Any, mode: int, coef: float = 0.0) -> Any:
    """Return the activation of x; NaN is not propagated by ReLU."""
    _check_alike(x=x)
    x = cupy().ascontiguousarray(x)
    y = cupy().empty(x.shape, x.dtype)
    one, zero = _one_zero(x)
    descriptor = flat_descriptor_of(x)
    kind = activation_descriptor(ActivationMode(mode), float(coef), NOT_PROPAGATE).value
    operands = (one, descriptor.value, x.data.ptr, zero, descriptor.value, y.data.ptr)
    call("cudnnActivationForward", kind, *operands, mode=ActivationMode(mode), x=x)
    return y


def activation_backward(x: Any, y: Any, gy: Any, mode: int, coef: float = 0.0) -> Any:
    """Return the gradient by x, from the forward pass's x and y and from gy."""
    _check_alike(x=x, y=y, gy=gy)
    gx = cupy().empty(x.shape, x.dtype)
    x, y, gy = (cupy().ascontiguousarray(array) for array in (x, y, gy))
    one, zero = _one_zero(x)
    flat = flat_descriptor_of(y).value
    kind = activation_descriptor(ActivationMode(mode), float(coef), NOT_PROPAGATE).value
    inputs = (flat, y.data.ptr, flat, gy.data.ptr, flat, x.data.ptr)
    arguments = (kind, one, *inputs, zero, flat, gx.data.ptr)
    call("cudnnActivationBackward", *arguments, mode=ActivationMode(mode), x=x, y=y)
    return gx


def _softmax_descriptor(array: Any, axis: int) -> tuple[TensorDescriptor, SoftmaxMode]:
    """Describe the shape (extents before the axis, the axis, extents after it, 1), and the mode."""
    if not -array.ndim <= axis < array.ndim:
        raise ArgumentError(f"axis={axis} must lie in the array's {array.ndim} dimensions")
    axis %= array.ndim
    outer, inner = prod(array.shape[:axis]), prod(array.shape[axis + 1 :])
    center = array.shape[axis]
    mode = INSTANCE if center == 1 and inner == 1 else CHANNEL
    shape = (outer, center, inner, 1)
    return described(array.dtype, shape, packed_strides(shape)), mode


def softmax_forward(x: Any, axis: int, algorithm: int) -> Any:
    """Return softmax of x over one axis."""
    _check_alike(x=x)
    x = cupy().ascontiguousarray(x)
    y = cupy().empty(x.shape, x.dtype)
    one, zero = _one_zero(x)
    descriptor, mode = _softmax_descriptor(x, axis)
    operands = (one, descriptor.value, x.data.ptr, zero, descriptor.value, y.data.ptr)
    context = {"algorithm": algorithm, "axis": axis, "x": x}
    call("cudnnSoftmaxForward", algorithm, mode, *operands, **context)
    return y


def softmax_backward(y: Any, gy: Any, axis: int, algorithm: int) -> Any:
    """Return the gradient by x, from the forward pass's y and from gy."""
    _check_alike(y=y, gy=gy)
    gx = cupy().empty(y.shape, y.dtype)
    y, gy = cupy().ascontiguousarray(y), cupy().ascontiguousarray(gy)
    one, zero = _one_zero(y)
    descriptor, mode = _softmax_descriptor(y, axis)
    inputs = (descriptor.value, y.data.ptr, descriptor.value, gy.data.ptr)
    arguments = (algorithm, mode, one, *inputs, zero, descriptor.value, gx.data.ptr)
    call("cudnnSoftmaxBackward", *arguments, algorithm=algorithm, axis=axis, y=y)
    return gx


def _nd(array: Any) -> TensorDescriptor:
    get_data_type(array.dtype)
    return described(array.dtype, *at_least_4d(array.shape, packed_strides(array.shape)))


def _check_window(x: Any, y: Any, ksize: Shape, stride: Shape, pad: Shape) -> None:
    if not len(ksize) == len(stride) == len(pad):
        raise ArgumentError("ksize, stride, and pad must be of same length")
    if x.ndim != len(ksize) + 2 or y.ndim != x.ndim or x.shape[:2] != y.shape[:2]:
        raise ArgumentError(
            f"x has shape {x.shape} and y {y.shape}; with ksize={ksize} both must be "
            f"(N, C, {len(ksize)} spatial dimensions), N and C alike"
        )
    check_array("x", x)
    check_array("y", y)
    if x.dtype != y.dtype:
        raise DTypeError(f"y has dtype {y.dtype.name}, but x has {x.dtype.name}")


def pooling_forward(x: Any, y: Any, ksize: Shape, stride: Shape, pad: Shape, mode: int) -> Any:
    """Write pooling of x to y, whose shape the caller has computed, and return y."""
    _check_window(x, y, ksize, stride, pad)
    x = cupy().ascontiguousarray(x)
    if not y.flags.c_contiguous:
        raise ArgumentError("pooling_forward supports c-contiguous y only")
    one, zero = _one_zero(x)
    xs, ys = _nd(x), _nd(y)
    with create_pooling_descriptor(ksize, stride, pad, mode) as pool:
        operands = (one, xs.value, x.data.ptr, zero, ys.value, y.data.ptr)
        context = {"ksize": ksize, "stride": stride, "pad": pad, "x": x, "y": y}
        call("cudnnPoolingForward", pool.value, *operands, **context)
    return y


def pooling_backward(
    x: Any, y: Any, gy: Any, ksize: Shape, stride: Shape, pad: Shape, mode: int
) -> Any:
    """Return the gradient by x, from the forward pass's x and y and from gy."""
    _check_window(x, y, ksize, stride, pad)
    _check_alike(y=y, gy=gy)
    gx = cupy().empty(x.shape, x.dtype)
    x, y, gy = (cupy().ascontiguousarray(array) for array in (x, y, gy))
    check_contiguous(gx)
    one, zero = _one_zero(x)
    xs, ys = _nd(x), _nd(y)
    with create_pooling_descriptor(ksize, stride, pad, mode) as pool:
        inputs = (ys.value, y.data.ptr, ys.value, gy.data.ptr, xs.value, x.data.ptr)
        arguments = (pool.value, one, *inputs, zero, xs.value, gx.data.ptr)
        context = {"ksize": ksize, "stride": stride, "pad": pad, "x": x, "y": y, "gy": gy}
        call("cudnnPoolingBackward", *arguments, **context)
    return gx


def create_dropout_descriptor(
    handle: int, dropout: float, states: int, state_size_in_bytes: int, seed: int
) -> DropoutDescriptor:
    """Describe dropout and initialise the random states at the address ``states``."""
    made = DropoutDescriptor()
    made.set(handle, dropout, states or None, state_size_in_bytes, seed)
    return made


def set_dropout_descriptor(desc: Any, handle: int, dropout: float) -> None:
    """Change the ratio and leave the random states alone."""
    arguments = (desc.value, handle, dropout, None, 0, 0)
    check(library.load().cudnnSetDropoutDescriptor(*arguments), "cudnnSetDropoutDescriptor")


def create_dropout_states(handle: int) -> Any:
    """Return memory for random states (deprecated in CuPy; use :class:`DropoutStates`)."""
    warnings.warn(
        "create_dropout_states is deprecated. Please use DropoutStates class instead.",
        DeprecationWarning,
        stacklevel=2,
    )
    return cupy().empty((states_size(),), "b")


class DropoutStates:
    """Random states of dropout; the ratio is given with each call.

    ``handle`` is None, or a handle from ``get_handle``.
    """

    def __init__(self, handle: int | None, seed: int) -> None:
        handle = current_handle() if handle is None else handle
        size = states_size()
        self._states = cupy().cuda.memory.alloc(size)
        self._desc = create_dropout_descriptor(handle, 0.0, self._states.ptr, size, seed)

    def set_dropout_ratio(self, dropout_ratio: float) -> None:
        """Change the ratio."""
        set_dropout_descriptor(self._desc, current_handle(), dropout_ratio)

    def forward(self, handle: int | None, x: Any, dropout_ratio: float) -> tuple[Any, Any]:
        """Return (reserve space, y)."""
        handle = current_handle() if handle is None else handle
        check_array("x", x)
        get_data_type(x.dtype)
        set_dropout_descriptor(self._desc, handle, dropout_ratio)
        x = cupy().ascontiguousarray(x)
        y = cupy().empty(x.shape, x.dtype)
        descriptor = flat_descriptor_of(x)
        size = reserve_size(descriptor)
        reserve = cupy().empty((size,), "b")
        desc, flat = self._desc.value, descriptor.value
        operands = (flat, x.data.ptr, flat, y.data.ptr, reserve.data.ptr, size)
        status = library.load().cudnnDropoutForward(handle, desc, *operands)
        check(status, "cudnnDropoutForward", {"x": x, "ratio": dropout_ratio})
        return reserve, y

    def backward(
        self, handle: int | None, dy: Any, dropout_ratio: float, reserve_space: Any
    ) -> Any:
        """Return the gradient by x: dy under the mask in ``reserve_space``."""
        handle = current_handle() if handle is None else handle
        check_array("dy", dy)
        check_array("reserve_space", reserve_space)
        get_data_type(dy.dtype)
        set_dropout_descriptor(self._desc, handle, dropout_ratio)
        dy = cupy().ascontiguousarray(dy)
        dx = cupy().empty(dy.shape, dy.dtype)
        descriptor = flat_descriptor_of(dy)
        need = reserve_size(descriptor)
        if reserve_space.nbytes < need:
            raise ArgumentError(
                f"reserve_space has {reserve_space.nbytes} bytes, but dropout of shape "
                f"{dy.shape} needs {need}"
            )
        desc, flat = self._desc.value, descriptor.value
        room = (reserve_space.data.ptr, reserve_space.nbytes)
        operands = (flat, dy.data.ptr, flat, dx.data.ptr, *room)
        status = library.load().cudnnDropoutBackward(handle, desc, *operands)
        check(status, "cudnnDropoutBackward", {"dy": dy, "ratio": dropout_ratio})
        return dx
