"""Kernels of operators for generated operands, and what they must give."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from minidnn.backends.cpu.compilers.library import NativeFunction
from minidnn.backends.cpu.operators import kernels as cpu
from minidnn.backends.cuda import kernels as cuda
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType
from minidnn.kernels.ir import Kernel
from minidnn.kernels.ops import lower
from minidnn.kernels.ops.pitched import Pitched
from minidnn.kernels.schedule import AxisSchedule
from tests.kernels.by_numpy import run

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
    """A kernel for each schedule, the memory of its operands, and what it leaves in that of its
    result, in which -77 stands before."""

    name: str
    lower: Callable[[AxisSchedule], Kernel]
    operands: Sequence[np.ndarray]
    expected: np.ndarray

    def __str__(self) -> str:
        return self.name

    def kernel(self, schedule: str) -> Kernel:
        return self.lower(SCHEDULES[schedule])

    def result(self) -> np.ndarray:
        return np.full(self.expected.size, -77).astype(self.expected.dtype)

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


def of_operator(name: str, op: Operator, operands: Sequence[np.ndarray], wide: bool) -> Made:
    """The kernel of an operator; ``wide``: its operands of several axes lie in wider memory."""
    (expected,) = op.reference(*operands)
    pairs = [lying(x, wide) for x in operands]
    lies = [*(lies for lies, _ in pairs), Pitched.dense(type_of(expected))]

    def lowered(schedule: AxisSchedule) -> Kernel:
        kernel = lower(op, lies, schedule)
        assert kernel is not None
        return kernel

    return Made(name, lowered, [array for _, array in pairs], expected)


def lying(x: np.ndarray, wide: bool) -> tuple[Pitched, np.ndarray]:
    """An operand and its memory: its own, or behind 2 and before 1 of more along axis 1."""
    if not wide or x.ndim < 2:
        return Pitched.dense(type_of(x)), x
    memory = np.pad(x, [(2, 1) if axis == 1 else (0, 0) for axis in range(x.ndim)])
    return Pitched(type_of(x), prod(memory.shape[1:]), 2 * prod(x.shape[2:])), memory


def type_of(x: np.ndarray) -> TensorType:
    return TensorType(x.shape, x.dtype.name)


def stored(dtype: str) -> Any:
    """NumPy's dtype of a param's elements."""
    return np.dtype("V16" if dtype == "bits128" else dtype.replace("bits", "uint"))


def drawn(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small integers, of which sums are exact."""
    return random.integers(0, 100, shape).astype(dtype)
