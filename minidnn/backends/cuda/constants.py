"""Numbers that never change, laid down on the device once."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...cudnn._cupy import cupy
from ...errors import OutOfMemoryError
from .bits import to_bits
from .lower import Data

_ALIGNMENT = 256


class Constants:
    """All data of a program in one block of device memory."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[object, ...], int] = {}
        self._pending: list[tuple[int, np.ndarray]] = []
        self._memory: Any = None
        self.bytes = 0

    def add(self, data: Data) -> None:
        """Takes data, unless equal data was taken before."""
        if data.key in self._offsets:
            return
        array = to_bits(data.make(), data.dtype)
        self._offsets[data.key] = self.bytes
        self._pending.append((self.bytes, array))
        self.bytes += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT

    def lay_down(self) -> None:
        """Copies everything to the device; OutOfMemoryError if it does not fit."""
        cuda = cupy().cuda
        try:
            self._memory = cuda.alloc(max(1, self.bytes))
        except cuda.memory.OutOfMemoryError as error:
            raise OutOfMemoryError(f"no room for {self.bytes} bytes of weights: {error}") from error
        for offset, array in self._pending:
            (self._memory + offset).copy_from_host(array.ctypes.data, array.nbytes)
        # From pageable memory a copy may still be on its way.  All of the device cannot be waited
        # for while another thread captures.
        cuda.Stream.null.synchronize()
        self._pending.clear()

    def address(self, data: Data) -> int:
        return int(self._memory.ptr) + self._offsets[data.key]
