"""Dropout with cuDNN's random states: forward, backward, save and restore.

Source: cuDNN, ``cudnnDropoutForward``, ``cudnnDropoutBackward``, ``cudnnSetDropoutDescriptor``.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from minidnn.cudnn.arrays import check_array, check_inputs, output
from minidnn.cudnn.descriptor import Descriptor
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.handle import call, current_handle, query_size
from minidnn.cudnn.tensor import TensorDescriptor, descriptor_of, operand
from minidnn.gpu import cupy


class DropoutInfo(NamedTuple):
    """What a dropout descriptor holds; ``states`` is the address of the random states."""

    ratio: float
    states: int
    seed: int


class DropoutDescriptor(Descriptor):
    """A ``cudnnDropoutDescriptor_t``; ``DropoutDescriptor()`` is not initialised."""

    __slots__ = ()
    KIND = "Dropout"

    def set(self, handle: int, ratio: float, states: int | None, size: int, seed: int) -> None:
        """``cudnnSetDropoutDescriptor``: initialise the states (None leaves them alone)."""
        arguments = (handle, ratio, states, size, seed)
        self._set("cudnnSetDropoutDescriptor", *arguments, ratio=ratio, size=size, seed=seed)

    def restore(self, handle: int, ratio: float, states: int, size: int, seed: int) -> None:
        """``cudnnRestoreDropoutDescriptor``: use states that hold saved ones already."""
        arguments = (handle, ratio, states, size, seed)
        self._set("cudnnRestoreDropoutDescriptor", *arguments, ratio=ratio, size=size, seed=seed)

    def get(self, handle: int) -> DropoutInfo:
        """``cudnnGetDropoutDescriptor``."""
        ratio, states, seed = ctypes.c_float(), ctypes.c_void_p(), ctypes.c_ulonglong()
        outputs = (ctypes.byref(ratio), ctypes.byref(states), ctypes.byref(seed))
        self.call("cudnnGetDropoutDescriptor", handle, *outputs)
        return DropoutInfo(ratio.value, states.value or 0, seed.value)


def states_size() -> int:
    """Return the bytes of the random states (``cudnnDropoutGetStatesSize``)."""
    return query_size("cudnnDropoutGetStatesSize")


def reserve_size(x: TensorDescriptor) -> int:
    """Return the bytes of the mask that forward keeps for backward."""
    return x.query_size("cudnnDropoutGetReserveSpaceSize")


class Dropout:
    """Dropout with random states of its own, on the device that is current when it is made.

    ``ratio`` is the probability of dropping an element; what is kept is divided by 1 - ratio.
    Equal seeds give equal masks.  Usable as a context manager.
    """

    def __init__(self, ratio: float, seed: int = 0) -> None:
        if not 0.0 <= ratio < 1.0:
            raise ArgumentError(f"ratio={ratio} must be at least 0 and below 1")
        self.ratio, self.seed = float(ratio), int(seed)
        handle = current_handle()
        self._states = cupy().empty(states_size(), "uint8")
        self._descriptor = DropoutDescriptor()
        size = self._states.nbytes
        self._descriptor.set(handle, self.ratio, self._states.data.ptr, size, self.seed)

    def forward(self, x: Any, y: Any = None, reserve: Any = None) -> tuple[Any, Any]:
        """Return (y, reserve); ``reserve`` (uint8) holds the mask for :meth:`backward`.

        With ``y`` and ``reserve`` given nothing is allocated.
        """
        check_inputs(x=x)
        y = output("y", y, "x", x, 0.0)
        described = descriptor_of(x, "x")
        need = reserve_size(described)
        if reserve is None:
            reserve = cupy().empty(need, "uint8")
        self._check_reserve(reserve, need)
        operands = (described.value, x.data.ptr, *operand(y, "y"), reserve.data.ptr, need)
        context = {"x": x, "y": y, "ratio": self.ratio}
        call("cudnnDropoutForward", self.descriptor, *operands, **context)
        return y, reserve

    def backward(self, dy: Any, reserve: Any, dx: Any = None) -> Any:
        """Return dx = dy * mask / (1 - ratio), with the mask that forward left in ``reserve``."""
        check_inputs(dy=dy)
        dx = output("dx", dx, "dy", dy, 0.0)
        described = descriptor_of(dy, "dy")
        need = reserve_size(described)
        self._check_reserve(reserve, need)
        operands = (described.value, dy.data.ptr, *operand(dx, "dx"), reserve.data.ptr, need)
        context = {"dy": dy, "dx": dx, "ratio": self.ratio}
        call("cudnnDropoutBackward", self.descriptor, *operands, **context)
        return dx

    def save(self) -> Any:
        """Return a copy of the random states (a uint8 array on the device)."""
        return self._states.copy()

    def restore(self, states: Any) -> None:
        """Go on from states that :meth:`save` returned: the masks that followed come again."""
        check_array("states", states)
        if states.dtype.name != "uint8" or states.shape != self._states.shape:
            raise ArgumentError(
                f"states has shape {states.shape} and dtype {states.dtype.name}; save() gives "
                f"{self._states.shape} and uint8"
            )
        self._states[...] = states
        handle, size = current_handle(), self._states.nbytes
        self._descriptor.restore(handle, self.ratio, self._states.data.ptr, size, self.seed)

    @property
    def descriptor(self) -> int:
        """The address of the descriptor, for calls that are made by hand."""
        return self._descriptor.value

    def info(self) -> DropoutInfo:
        """Return what the descriptor holds."""
        return self._descriptor.get(current_handle())

    def close(self) -> None:
        """Free the descriptor and the states."""
        self._descriptor.close()
        self._states = None

    def __enter__(self) -> Dropout:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_reserve(self, reserve: Any, need: int) -> None:
        if self._states is None:
            raise ArgumentError("this Dropout is closed and cannot be used any more")
        check_array("the random states of this Dropout", self._states)
        check_array("reserve", reserve)
        if reserve.nbytes < need or not reserve.flags.c_contiguous:
            raise ArgumentError(
                f"reserve has {reserve.nbytes} bytes, but dropout of this array needs {need}, "
                "contiguous"
            )
