"""Memory with nothing beside it: who reads there is ended by a segmentation fault."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_NOTHING = 0  # PROT_NONE
_CHUNK = 16  # bytes that a kernel may take at once, which lie in one page


class Pages:
    """Arrays that begin where a page begins whose predecessor cannot be read, or end where one
    ends whose successor cannot be (but for what is missing to 16 bytes)."""

    def __init__(self, at_end: bool) -> None:
        self._at_end = at_end
        self._kept: list[mmap.mmap] = []
        self._protect = ctypes.CDLL(None).mprotect
        self._protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def __call__(self, size: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """All of the memory that there is, of NaN, and the array in it."""
        page, used = mmap.PAGESIZE, size * dtype.itemsize
        chunks = -(-used // _CHUNK) * _CHUNK
        there = -(-chunks // page) * page
        memory = mmap.mmap(-1, there + 2 * page)
        self._kept.append(memory)
        whole = np.frombuffer(memory, np.uint8)
        whole[:] = 0xFF
        for beside in (0, page + there):
            assert self._protect(whole.ctypes.data + beside, page, _NOTHING) == 0
        begin = page + (there - chunks if self._at_end else 0)
        room = whole[page : page + there]
        return room.view(dtype), whole[begin : begin + used].view(dtype)
