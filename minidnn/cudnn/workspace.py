"""Scratch memory for cuDNN: one buffer per device, stream and thread; it grows, from CuPy's pool.

Work on one stream runs in order, so the calls of one thread there can share one buffer.  Two
threads cannot, even on one stream: a convolution may be several kernels, which may interleave.  A
buffer that a CUDA graph has recorded is kept when a larger one takes its place, as the graph goes
on using it; such a graph must not be replayed at the same time as other cuDNN work of the thread
and stream of its capture.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from minidnn.cudnn.errors import ArgumentError
from minidnn.errors import OutOfMemoryError
from minidnn.gpu import cupy

_DEFAULT_LIMIT = 1 << 30
_limit = _DEFAULT_LIMIT
_lock = threading.Lock()


class _Buffer:
    """One workspace of ``size`` bytes; ``captured`` once a CUDA graph has recorded its address."""

    __slots__ = ("captured", "memory", "size")

    def __init__(self, memory: Any, size: int) -> None:
        self.memory = memory
        self.size = size
        self.captured = False


class _Buffers(dict[tuple[int, int], _Buffer]):
    """The buffers of one thread, by device and stream address."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # for the WeakSet: by identity


class _ThreadBuffers(threading.local):
    def __init__(self) -> None:
        self.buffers = _Buffers()
        with _lock:
            _all.add(self.buffers)


_all: weakref.WeakSet[_Buffers] = weakref.WeakSet()
_kept: list[_Buffer] = []  # buffers that a CUDA graph has recorded
_local = _ThreadBuffers()


def get_limit() -> int:
    """Return the default workspace limit in bytes; 1 GiB unless :func:`set_limit` was called."""
    return _limit


def set_limit(size: int) -> None:
    """Set the default workspace limit of the binding's own convolutions, in bytes."""
    global _limit
    if size < 0:
        raise ArgumentError(f"size={size} must not be negative")
    _limit = int(size)


def acquire(size: int) -> Any:
    """Return memory of at least ``size`` bytes for work on the current stream; None for 0.

    The result is a ``cupy.cuda.MemoryPointer``; hold it until the work is launched.  Raises
    :class:`~minidnn.errors.OutOfMemoryError`.
    """
    if not size:
        return None
    cuda = cupy().cuda
    stream = cuda.get_current_stream().ptr
    key = (cuda.runtime.getDevice(), stream)
    buffers = _local.buffers
    buffer = buffers.get(key)
    if buffer is None or buffer.size < size:
        buffer = _grow(buffers, key, size)
    if not buffer.captured and stream and cuda.runtime.streamIsCapturing(stream):
        buffer.captured = True
        _kept.append(buffer)
    return buffer.memory


def _grow(buffers: _Buffers, key: tuple[int, int], size: int) -> _Buffer:
    """Replace the buffer of that device and stream by one of ``size`` bytes."""
    memory = cupy().cuda.memory
    old = buffers.pop(key, None)
    old_size = old.size if old else 0
    del old  # its memory can serve the larger buffer
    try:
        grown = _Buffer(memory.alloc(size), size)
    except memory.OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"no room for a cuDNN workspace of {size} bytes on device {key[0]} "
            f"(it had {old_size}): {error}"
        ) from error
    buffers[key] = grown
    return grown


def sizes() -> dict[tuple[int, int], int]:
    """Return the bytes that this thread holds, by (device, stream address)."""
    return {key: buffer.size for key, buffer in sorted(_local.buffers.items())}


def release() -> None:
    """Give the workspaces of all threads back to the pool, also those that CUDA graphs recorded.

    A graph that was captured with one of them must not be replayed afterwards.
    """
    with _lock:
        for buffers in list(_all):
            buffers.clear()
        _kept.clear()
