"""Kernels of operators for generated operands, and what they must give."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from minidnn.backends.cpu.compilers.library import NativeFunction
from minidnn.backends.cpu.operators import kernels as cpu
from minidnn.backends.cuda import kernels as cuda
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType, numpy_dtype
from minidnn.kernels.ir import Kernel
from minidnn.kernels.ops import LOWERINGS
from minidnn.kernels.ops.pitched import Pitched
from minidnn.kernels.render.numpy import run
from minidnn.kernels.schedule import AxisSchedule

#: Both engines', and small ones: lanes in chunks, of several axes, and work that is split.
SCHEDULES: Mapping[str, AxisSchedule] = {
    "cpu": cpu.SCHEDULE,
    "cuda": cuda.SCHEDULE,
    "chunks": AxisSchedule(lanes=3, chunk=4, keeps_sizes=True),
    "points": AxisSchedule(points=64),
}
_VOID = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True, eq=False)
class Made:
    """An operator on operands that lie dense."""

    name: str
    op: Operator
    operands: Sequence[np.ndarray]

    def __str__(self) -> str:
        return self.name

    @cached_property
    def expected(self) -> np.ndarray:
        (result,) = self.op.reference(*self.operands)
        return result

    @cached_property
    def types(self) -> list[TensorType]:
        return [TensorType(x.shape, x.dtype.name) for x in (*self.operands, self.expected)]

    def kernel(self, schedule: str) -> Kernel:
        lower = LOWERINGS[type(self.op)]
        return lower(self.op, [*map(Pitched.dense, self.types)], SCHEDULES[schedule])

    def result(self) -> np.ndarray:
        """Memory for the result, in which nothing has been written yet."""
        return np.full(self.expected.size, -77).astype(numpy_dtype(self.types[-1].dtype))

    def interpreted(self, kernel: Kernel) -> np.ndarray:
        result = self.result()
        memory = [*(x.ravel() for x in self.operands), *kernel.tables, result]
        pairs = zip(kernel.params, memory, strict=True)
        run(kernel, {b.name: array.view(stored(b.dtype)) for b, array in pairs})
        return result.reshape(self.expected.shape)

    def called(self, kernel: Kernel, function: NativeFunction) -> np.ndarray:
        """What a kernel for the CPU gives."""
        result, sizes = self.result(), np.array([*kernel.sizes.values()], np.int64)
        memory = [*map(np.ascontiguousarray, self.operands), *kernel.tables, result, sizes]
        pointers = (ctypes.c_void_p * len(memory))(*(array.ctypes.data for array in memory))
        _VOID(function.address)(ctypes.addressof(pointers), 0, kernel.tasks, None)
        return result.reshape(self.expected.shape)


def stored(dtype: str) -> Any:
    """NumPy's dtype of a param's elements."""
    bits = dtype.removeprefix("bits")
    return np.dtype(f"V{int(bits) // 8}") if bits != dtype else np.dtype(dtype)


def drawn(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small whole numbers, of which sums are exact."""
    return random.integers(0, 100, shape).astype(dtype)
