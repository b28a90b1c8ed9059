"""Large constants that the runner's threads write to where they shall lie (runner/weights.c)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .buffers import Array
from .library import NativeFunction
from .native import runner_kernel
from .program import BoundKernel, NativeProgram, Operand, shared_pool


class Packed:
    """``size`` floats that a function of the runner makes of weights.

    Calling it gives a new array; :meth:`write` writes to one that is there.

    Args:
        function: of the runner.
        weight: gives the weights, when they are needed.
        numbers: what the function reads besides, arrays of int64 and float64.
        tasks: into how many parts the work is divided.
    """

    def __init__(
        self,
        function: str,
        weight: Callable[[], Array],
        numbers: Sequence[Array],
        size: int,
        tasks: int,
    ) -> None:
        self.size = size
        self._function = function
        self._weight = weight
        self._numbers = numbers
        self._tasks = tasks

    @property
    def recipe(self) -> tuple[object, ...]:
        """What is equal for two that write the same floats of the same weights."""
        return (self._function, self.size, *(numbers.tobytes() for numbers in self._numbers))

    def weight(self) -> Array:
        """The weights, as :meth:`write` takes them."""
        return np.ascontiguousarray(self._weight(), np.float32)

    def write(self, target: Array, weight: Array, threads: int) -> None:
        """Writes the floats that it makes of the weights to a contiguous array of ``size``."""
        arrays = (target, weight, *self._numbers)
        kernel: NativeFunction = runner_kernel(self._function)
        operands = tuple(map(Operand, range(len(arrays))))
        region = BoundKernel(kernel, operands, self._tasks)
        NativeProgram([region], len(arrays), pool=shared_pool(threads)).run(
            [array.ctypes.data for array in arrays]
        )

    def __call__(self) -> Array:
        made = np.empty(self.size, np.float32)
        self.write(made, self.weight(), 1)
        return made
