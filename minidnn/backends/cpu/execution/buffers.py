"""Memory for arenas, weights and values: large pages, or guard pages for finding bugs."""

from __future__ import annotations

import enum
import os
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import OutOfMemoryError
from .native import MemoryStruct, runner

Array = np.ndarray[Any, Any]

_UNTOUCHED = -(1 << 63)


class Guard(enum.IntEnum):
    """The end of a buffer that touches a guard, which is memory that cannot be accessed.

    ``END`` and ``START`` put guards of 1 MiB on both sides, and fill fresh memory with 0xff bytes
    (NaN).  With ``END`` the buffer's end touches a guard: an access past the end faults at once,
    one before the start only if it reaches beyond the gap that rounding up to pages leaves.
    ``START`` is the reverse.
    """

    NONE = 0
    END = 1
    START = 2


class AlignedMemory:
    """Memory outside Python's heap, freed when the object (and every array on it) is gone.

    ``address`` is a multiple of 64 (of 2 MiB from that size on, where large pages are asked for);
    fresh memory is zero, or NaN between guards.

    Raises:
        OutOfMemoryError: the system has no such memory.
        ValueError: negative size, or an alignment that is not a power of two up to 4096.
    """

    def __init__(self, size: int, guard: Guard = Guard.NONE, alignment: int = 64) -> None:
        if size < 0:
            raise ValueError(f"AlignedMemory: size {size} is negative")
        if alignment not in {1 << i for i in range(13)}:
            raise ValueError(
                f"AlignedMemory: alignment {alignment} is not a power of two up to 4096"
            )
        library = runner()
        self._memory = MemoryStruct()
        error = library.md_memory_new(self._memory, size, alignment, int(guard))
        if error:
            raise OutOfMemoryError(
                f"a buffer of {size} bytes cannot be allocated: {os.strerror(error)}"
            )
        weakref.finalize(self, library.md_memory_free, self._memory)
        self.size = size
        self.guard = guard
        self.address: int = self._memory.data

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Array:
        """An array on this memory, from ``offset`` bytes on; it keeps the buffer alive.

        Raises:
            ValueError: it does not fit.
        """
        count = int(np.prod(shape, dtype=np.int64))
        needed = offset + count * np.dtype(dtype).itemsize
        if offset < 0 or needed > self.size:
            raise ValueError(
                f"AlignedMemory.array: {shape} of {np.dtype(dtype)} from offset {offset} needs "
                f"{needed} bytes; the buffer has {self.size}"
            )
        return np.asarray(_View(self, np.dtype(dtype).str, shape, self.address + offset))

    def stray_write(self) -> int | None:
        """The offset of the first byte that was written outside of the data, or None.

        Only guarded buffers can tell: alignment leaves a gap of less than a page between the
        data and one of the guard pages.
        """
        if self.guard is Guard.NONE:
            return None
        at = int(runner().md_memory_check(self._memory))
        return None if at == _UNTOUCHED else at


class _View:
    """What NumPy makes an array from; the array's base is this object, which keeps the buffer."""

    def __init__(
        self, owner: AlignedMemory, dtype: str, shape: tuple[int, ...], address: int
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": dtype,
            "shape": shape,
            "data": (address, False),
        }
