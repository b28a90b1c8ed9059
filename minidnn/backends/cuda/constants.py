"""Constant data of programs, uploaded to the device once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...gpu import cupy
from ...runtime.arrays import to_bits
from .memory import aligned, allocated


@dataclass(frozen=True, eq=False)
class Data:
    """Constant data that a kernel reads; ``make`` computes it, for elements of ``dtype``."""

    make: Callable[[], np.ndarray]
    dtype: str
    #: Data with equal keys is equal, and uploaded once.
    key: tuple[object, ...]


class Constants:
    """All constant data of a program in one block of device memory, equal data once.

    A pool's threads compute the data (NumPy releases the GIL in large operations) while the caller
    does something else; :meth:`upload` waits.  Data that an ``other`` has is not computed again:
    it is read there, and offsets are counted from the address of that one.
    """

    def __init__(
        self, data: Iterable[Data], pool: Executor, other: Constants | None = None
    ) -> None:
        self._making: dict[tuple[object, ...], Future[np.ndarray]] = {}
        self._other = other
        for item in data:
            if item.key not in self._making and not (other and item.key in other._offsets):
                self._making[item.key] = pool.submit(_bits, item)
        self._offsets: dict[tuple[object, ...], int] = {}
        self._sizes: dict[tuple[object, ...], int] = {}
        self._memory: Any = None
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """The size of the block; waits until all data is computed."""
        for key, made in self._making.items():
            if key not in self._offsets:
                self._offsets[key] = self._bytes
                self._sizes[key] = made.result().nbytes
                self._bytes += aligned(self._sizes[key])
        return self._bytes

    def upload(self) -> None:
        """Uploads all data to the device; OutOfMemoryError if it does not fit."""
        if self._other is not None and not self.bytes:
            return
        self._memory = allocated(self.bytes, "weights")
        for key, made in self._making.items():
            array = made.result()
            target = self._memory + self._offsets[key]
            target.copy_from_host(array.ctypes.data, array.nbytes)
        # A copy from pageable memory may still be in flight.  The whole device cannot be waited for
        # while another thread captures a graph.
        cupy().cuda.Stream.null.synchronize()
        self._making.clear()

    @property
    def address(self) -> int:
        """Where the block begins, or that of the other one, once it is uploaded."""
        return int(self._memory.ptr) if self._other is None else self._other.address

    def offset(self, data: Data) -> int:
        """Bytes from :attr:`address` to some data; negative if it is before that."""
        if self._other is None:
            return self._offsets[data.key]
        if data.key in self._other._offsets:
            return self._other.offset(data)
        return self._offsets[data.key] + int(self._memory.ptr) - self.address

    def copied(self) -> np.ndarray:
        """The bytes of the block, from the device; gaps, which nobody wrote, are zeros."""
        copy = np.zeros(self._bytes, np.uint8)
        for key, offset in self._offsets.items():
            source = self._memory + offset
            source.copy_to_host(copy[offset:].ctypes.data, self._sizes[key])
        return copy


class UploadedConstants:
    """A block of constant data that is uploaded as a whole, to the current device."""

    def __init__(self, given: np.ndarray) -> None:
        self.bytes = given.nbytes
        self._memory = allocated(self.bytes, "weights")
        self.address = int(self._memory.ptr)
        if self.bytes:
            self._memory.copy_from_host(given.ctypes.data, self.bytes)
            cupy().cuda.Stream.null.synchronize()  # the copy may still be in flight


def _bits(data: Data) -> np.ndarray:
    return to_bits(data.make(), data.dtype)
