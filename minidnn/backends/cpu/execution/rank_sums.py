"""Sums over ranks on CPUs: a row of the table that calls back into Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ....graph.operators import SumOverRanks
from ....graph.operators.ranks import meeting_of
from ....graph.types import TensorType, numpy_dtype
from ..compilers.library import NativeFunction

_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int, ctypes.c_void_p
)


@dataclass(frozen=True, eq=False)
class HostFunction(NativeFunction):
    """A Python function as a kernel; what it raises is raised once the run has ended."""

    kept: Any = field(default=None, repr=False)
    raised: list[BaseException] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class HostSum:
    """The kernel of a node, whose pointers are all operands, then all results."""

    op: SumOverRanks
    types: tuple[TensorType, ...]

    def function(self) -> HostFunction:
        """It as the runner calls it."""
        raised: list[BaseException] = []

        def kernel(pointers: Any, begin: int, end: int, scratch: Any) -> None:
            try:
                self._add(lambda i, type: _array(pointers[i], type))
            except BaseException as error:  # C cannot hand it on
                raised.append(error)

        called = _KERNEL(kernel)
        address = ctypes.cast(called, ctypes.c_void_p).value or 0
        return HostFunction(self.op.name, address, Path(), called, raised)

    def _add(self, array: Callable[[int, TensorType], np.ndarray]) -> None:
        count = len(self.types)
        sums = []
        for i, type in enumerate(self.types):
            found = array(count + i, type)
            found[...] = array(i, type)
            sums.append(found)
        if self.op.ranks > 1:
            meeting_of(self.op.ranks).add(sums)


def _array(address: int, type: TensorType) -> np.ndarray:
    dtype = numpy_dtype(type.dtype)
    size = prod(type.shape) * dtype.itemsize
    if not size:
        return np.empty(type.shape, dtype)
    held: Any = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(held, dtype).reshape(type.shape)
