"""Weights and vectors over channels in the order in which kernels read them.

Of constants they are made when a program is; of other values a kernel makes them in every run,
before what reads them (:mod:`.lower`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

import numpy as np

from ....graph.ir import Constant, Value
from ....runtime.operand import Operand
from ...codegen.kernel import KernelSource
from ..compilers.library import NativeFunction
from .buffers import Array
from .native import runner_kernel
from .program import BoundKernel, NativeProgram, shared_pool


class Packed:
    """``size`` floats that a function of the runner makes of values (runner/weights.c).

    Calling it gives those of a constant; :meth:`write` writes them to where they shall lie.

    Args:
        function: of the runner.
        values: what it reads; one weight, if that is a constant.
        numbers: what the function reads besides, arrays of int64 and float64.
        tasks: into how many parts the work is divided, ``grain`` of them in one call at best.
        kernel: does the same in every run, of weights that are no constants; None: the function.
    """

    def __init__(
        self,
        function: str,
        values: Sequence[Value],
        numbers: Sequence[Array],
        size: int,
        tasks: int,
        grain: int = 1,
        kernel: KernelSource | None = None,
    ) -> None:
        self.kernel = kernel
        self.function = function
        self.values = tuple(values)
        self.numbers = tuple(numbers)
        self.size = size
        self.tasks = tasks
        self.grain = grain

    @property
    def recipe(self) -> tuple[object, ...]:
        """What is equal for two that write the same floats of the same weights."""
        return (self.function, self.size, *(numbers.tobytes() for numbers in self.numbers))

    @property
    def key(self) -> Hashable:
        """What is equal for two that give the same floats."""
        return self.recipe, self.values

    def weight(self) -> Array:
        """The constant weight, as :meth:`write` takes it."""
        (value,) = self.values
        return np.ascontiguousarray(data_of(value), np.float32)

    def write(self, target: Array, weight: Array, threads: int) -> None:
        """Writes the floats that it makes of the weights to a contiguous array of ``size``."""
        arrays = (target, *self.numbers, weight)
        kernel: NativeFunction = runner_kernel(self.function)
        operands = tuple(map(Operand, range(len(arrays))))
        region = BoundKernel(kernel, operands, self.tasks, self.grain)
        NativeProgram([region], len(arrays), pool=shared_pool(threads)).run(
            [array.ctypes.data for array in arrays]
        )

    def __call__(self) -> Array:
        made = np.empty(self.size, np.float32)
        self.write(made, self.weight(), 1)
        return made


class PackedVectors:
    """Floats that ``pack`` makes of arrays with a number for each channel, placing each of these
    anywhere and zeros elsewhere.

    Calling it gives those of constants.  ``recipe`` is equal for two functions that do the same.
    """

    def __init__(
        self,
        values: Sequence[Value],
        pack: Callable[[Sequence[Array]], Array],
        recipe: Hashable = None,
    ) -> None:
        self.values = tuple(values)
        self._pack = pack
        self._recipe = pack if recipe is None else recipe

    @property
    def key(self) -> Hashable:
        """What is equal for two that give the same floats."""
        return self._recipe, self.values

    def __call__(self) -> Array:
        return self._pack([data_of(v).astype(np.float32, copy=False) for v in self.values])

    def picked(self) -> Packed:
        """The same of any values: where each float comes from is what ``pack`` makes of numbers."""
        ends = np.cumsum([0, *(value.type.size for value in self.values)])
        place = self._pack([np.arange(a, b) + 1 for a, b in pairwise(ends)]) - 1
        vector = np.searchsorted(ends, place, "right") - 1
        halves = np.array([value.dtype == "bfloat16" for value in self.values])[vector]
        table = np.stack([vector, place - ends[vector], halves], axis=1).astype(np.int64)
        return Packed("md_pick", self.values, [table], len(table), len(table), _PICKED)


_PICKED = 1 << 12
"""Floats that are picked in one call."""


def data_of(value: Value) -> Array:
    """The array of a constant."""
    assert isinstance(value, Constant)
    return value.data


def first_terms(values: Sequence[Value], zero: int) -> np.ndarray:
    """The first terms (outputs,) of sums of weights, and of a bias if there is one: that, less what
    the input's zero adds."""
    weight, *bias = values
    data = data_of(weight).astype(np.int64)
    start = -zero * data.reshape(len(data), -1).sum(1)
    for value in bias:
        start = start + data_of(value)
    return np.asarray(start).astype(np.int32)
