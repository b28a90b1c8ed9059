"""CuPy 13's dropout."""

from __future__ import annotations

import warnings
from typing import Any

from minidnn.cudnn import library
from minidnn.cudnn.arrays import check_array
from minidnn.cudnn.compat.descriptors import get_data_type
from minidnn.cudnn.dropout import DropoutDescriptor, reserve_size, states_size
from minidnn.cudnn.errors import ArgumentError, check
from minidnn.cudnn.handle import current_handle
from minidnn.cudnn.tensor import flat_descriptor_of
from minidnn.gpu.cupy import cupy


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
