"""Numbers that never change, laid down on the device once."""

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
    """Numbers that are laid down once for a kernel, as elements of ``dtype``."""

    make: Callable[[], np.ndarray]
    dtype: str
    #: Equal keys are equal numbers, which are laid down once.
    key: tuple[object, ...]


class Constants:
    """All data of a program in one block of device memory, equal data once.

    A pool's threads make them (NumPy lets go of the interpreter in large operations) while the
    caller does something else; :meth:`lay_down` waits.  What an ``other`` has is not made again: it
    is read there, and places are counted from that one's address.
    """

    def __init__(
        self, data: Iterable[Data], pool: Executor, other: Constants | None = None
    ) -> None:
        self._making: dict[tuple[object, ...], Future[np.ndarray]] = {}
        self._other = other
        for one in data:
            if one.key not in self._making and not (other and one.key in other._offsets):
                self._making[one.key] = pool.submit(_bits, one)
        self._offsets: dict[tuple[object, ...], int] = {}
        self._sizes: dict[tuple[object, ...], int] = {}
        self._memory: Any = None
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Device memory that they take, once they are made."""
        for key, made in self._making.items():
            if key not in self._offsets:
                self._offsets[key] = self._bytes
                self._sizes[key] = made.result().nbytes
                self._bytes += aligned(self._sizes[key])
        return self._bytes

    def lay_down(self) -> None:
        """Copies everything to the device; OutOfMemoryError if it does not fit."""
        if self._other is not None and not self.bytes:
            return
        self._memory = allocated(self.bytes, "weights")
        for key, made in self._making.items():
            array = made.result()
            place = self._memory + self._offsets[key]
            place.copy_from_host(array.ctypes.data, array.nbytes)
        # From pageable memory a copy may still be on its way.  All of the device cannot be waited
        # for while another thread captures.
        cupy().cuda.Stream.null.synchronize()
        self._making.clear()

    @property
    def address(self) -> int:
        """Where they begin, or those of the other one, once they are laid down."""
        return int(self._memory.ptr) if self._other is None else self._other.address

    def offset(self, data: Data) -> int:
        """Where one begins, behind that, or before it."""
        if self._other is None:
            return self._offsets[data.key]
        if data.key in self._other._offsets:
            return self._other.offset(data)
        return self._offsets[data.key] + int(self._memory.ptr) - self.address

    def copied(self) -> np.ndarray:
        """Their bytes, from the device; what lies between them, which nobody wrote, is zeros."""
        found = np.zeros(self._bytes, np.uint8)
        for key, offset in self._offsets.items():
            place = self._memory + offset
            place.copy_to_host(found[offset:].ctypes.data, self._sizes[key])
        return found


class LaidDown:
    """Numbers of which all bytes were given at once, on the current device."""

    def __init__(self, given: np.ndarray) -> None:
        self.bytes = given.nbytes
        self._memory = allocated(self.bytes, "weights")
        self.address = int(self._memory.ptr)
        if self.bytes:
            self._memory.copy_from_host(given.ctypes.data, self.bytes)
            cupy().cuda.Stream.null.synchronize()  # it may still be on its way


def _bits(data: Data) -> np.ndarray:
    return to_bits(data.make(), data.dtype)
