"""cuDNN handles: one per device and thread, on CuPy's current stream.

A thread that ends gives its handles back for other threads to use (creating one takes tens of
milliseconds, and destroying one synchronises the device).  All are destroyed at exit.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

from minidnn.cudnn import library
from minidnn.cudnn.errors import check
from minidnn.gpu import cupy

_free: dict[int, list[Handle]] = {}  # by device, from threads that have ended
_all: list[Handle] = []
_lock = threading.Lock()


class Handle:
    """A ``cudnnHandle_t`` of one device, and the stream that it is set to."""

    __slots__ = ("device", "stream", "value")

    def __init__(self, device: int) -> None:
        created = ctypes.c_void_p()
        status = library.load().cudnnCreate(ctypes.byref(created))
        check(status, "cudnnCreate", device=device)
        self.device = device
        self.value: int = created.value or 0
        self.stream = 0  # a new handle is on the default stream

    def set_stream(self, stream: int) -> None:
        """Make this handle work on ``stream`` (an address); does nothing if it does already."""
        if stream != self.stream:
            status = library.load().cudnnSetStream(self.value, stream)
            check(status, "cudnnSetStream", device=self.device, stream=hex(stream))
            self.stream = stream

    def destroy(self) -> None:
        """Destroy the handle; a second call does nothing.

        The status is not looked at: at exit, the CUDA context may be gone already, and then
        the handle went with it.
        """
        if self.value:
            library.load().cudnnDestroy(self.value)
            self.value = 0


class _ThreadHandles(threading.local):
    """The handles of one thread by device; they go to ``_free`` when the thread ends."""

    def __init__(self) -> None:
        self.by_device = _HandlesByDevice()


class _HandlesByDevice(dict[int, Handle]):
    """A thread's handles by device, which it puts into ``_free`` when it is deleted."""

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # An argument's default outlives the module's globals when the interpreter ends.
        if not finalizing() and _lock.acquire(blocking=False):
            try:
                for device, handle in self.items():
                    if handle.value:
                        _free.setdefault(device, []).append(handle)
            finally:
                _lock.release()


_local = _ThreadHandles()


def current_handle() -> int:
    """Return the ``cudnnHandle_t`` (an int) of the current device and thread, on CuPy's current
    stream.

    Do not keep it: another stream may be current at the next call.  Raises
    :class:`~minidnn.errors.DeviceError` without CuPy, GPU or cuDNN.
    """
    cuda = cupy().cuda
    device = cuda.runtime.getDevice()
    handle = _local.by_device.get(device)
    if handle is None or not handle.value:
        handle = _local.by_device[device] = _take(device)
    stream = cuda.get_current_stream().ptr
    if stream != handle.stream:
        handle.set_stream(stream)
    return handle.value


def call(
    name: str, *arguments: Any, context: Callable[[], dict[str, Any]] | None = None, **more: Any
) -> None:
    """Call a function of cuDNN whose first argument is a handle, with the current handle.

    On failure :class:`CuDNNError` reports ``more`` and what ``context`` returns then.
    """
    status = getattr(library.load(), name)(current_handle(), *arguments)
    if status:
        check(status, name, context, **more)


def query_size(name: str, *arguments: Any) -> int:
    """Return the size in bytes that a function writes to its last argument."""
    size = ctypes.c_size_t()
    call(name, *arguments, ctypes.byref(size))
    return size.value


def _take(device: int) -> Handle:
    """Return a handle of the device that an ended thread left, or a new one."""
    with _lock:
        idle = _free.get(device)
        if idle:
            return idle.pop()
    handle = Handle(device)
    with _lock:
        _all.append(handle)
    return handle


@atexit.register
def reset_handles() -> None:
    """Destroy all handles of all threads; the next use creates new ones."""
    with _lock:
        for handle in _all:
            handle.destroy()
        _all.clear()
        _free.clear()
