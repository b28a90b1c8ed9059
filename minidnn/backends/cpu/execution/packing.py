"""Packing of weights and of vectors over channels into the order in which kernels read them.

Constants are packed when a program is built, into memory that the programs of one process share.
Other values are packed in every run, by a kernel before those that read them
(:mod:`minidnn.backends.cpu.lower`).
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import pairwise
from weakref import WeakValueDictionary

import numpy as np

from ...._forks import ForkLock
from ....graph.ir import Constant, Value
from ....runtime.operand import Operand
from ...codegen.kernel import KernelSource
from ..compilers.library import NativeFunction
from .buffers import AlignedMemory, Array, Guard
from .native import runner_kernel
from .program import BoundKernel, NativeProgram, shared_pool


class Packed:
    """``size`` floats that a function of the runner packs from values (runner/weights.c).

    Calling it returns the floats of a constant; :meth:`write` writes them into an array.

    Args:
        function: the name of the function of the runner.
        values: the values that it reads; one weight, if that is a constant.
        numbers: the function's further operands, arrays of int64 and float64.
        tasks: the number of tasks of the function, of which ``grain`` are best in one call.
        kernel: packs weights that are no constants, in every run; None for the function itself.
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
        """Equal for two objects that pack the same weights to the same floats."""
        return (self.function, self.size, *(numbers.tobytes() for numbers in self.numbers))

    @property
    def key(self) -> Hashable:
        """Equal for two objects that give the same floats."""
        return self.recipe, self.values

    def weight(self) -> Array:
        """The constant weight, as :meth:`write` takes it."""
        (value,) = self.values
        return np.ascontiguousarray(data_of(value), np.float32)

    def write(self, target: Array, weight: Array, threads: int) -> None:
        """Packs a weight into ``target``, a contiguous array of ``size`` floats."""
        arrays = (target, *self.numbers, weight)
        kernel: NativeFunction = runner_kernel(self.function)
        operands = tuple(map(Operand, range(len(arrays))))
        region = BoundKernel(kernel, operands, self.tasks, self.grain)
        NativeProgram([region], len(arrays), pool=shared_pool(threads)).run(
            [array.ctypes.data for array in arrays]
        )

    def __call__(self) -> Array:
        packed = np.empty(self.size, np.float32)
        self.write(packed, self.weight(), 1)
        return packed


class PackedVectors:
    """Vectors over channels, packed into one array of floats.

    ``pack`` copies the elements of the vectors to any positions of the array, and has zeros in all
    others.  Calling the object returns the array for constants.  ``recipe`` identifies ``pack``: it
    is equal for two functions that do the same.
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
        """Equal for two objects that give the same floats."""
        return self._recipe, self.values

    def __call__(self) -> Array:
        return self._pack([data_of(v).astype(np.float32, copy=False) for v in self.values])

    def picked(self) -> Packed:
        """The same packing for values that are no constants.  ``pack`` is applied to the numbers of
        all elements, which says from which element each float comes."""
        ends = np.cumsum([0, *(value.type.size for value in self.values)])
        element = self._pack([np.arange(a, b) + 1 for a, b in pairwise(ends)]) - 1
        vector = np.searchsorted(ends, element, "right") - 1
        is_bfloat16 = np.array([value.dtype == "bfloat16" for value in self.values])[vector]
        table = np.stack([vector, element - ends[vector], is_bfloat16], axis=1).astype(np.int64)
        return Packed("md_pick", self.values, [table], len(table), len(table), _PICKED)


_PICKED = 1 << 12
"""Floats that one call of ``md_pick`` copies."""


def data_of(value: Value) -> Array:
    """The array of a constant."""
    assert isinstance(value, Constant)
    return value.data


def first_terms(values: Sequence[Value], zero: int) -> np.ndarray:
    """The initial accumulators (outputs,) of an integer contraction: the bias, if there is one,
    less what the input's zero point would add.  ``values`` are the weight and the bias."""
    weight, *bias = values
    data = data_of(weight).astype(np.int64)
    start = -zero * data.reshape(len(data), -1).sum(1)
    for value in bias:
        start = start + data_of(value)
    return np.asarray(start).astype(np.int32)


_ALIGNMENT = 64
_CHUNK_BYTES = 32 << 20
_SAMPLES = 1024
"""Elements of an array whose hash finds equal arrays, before all their bytes are compared."""


class PackedConstant:
    """A constant as kernels read it, in memory that lives as long as any constant in it is used."""

    def __init__(self, memory: AlignedMemory, offset: int, dtype: np.dtype, size: int) -> None:
        self.memory = memory
        self.address = memory.address + offset
        self.bytes = size * dtype.itemsize
        self._where = (dtype, (size,), offset)

    def array(self) -> Array:
        """The constant as a one-dimensional array."""
        return self.memory.array(*self._where)


_lock = ForkLock()
#: The constants of all programs, by how they were packed and by a sample of what they were packed
#: from.
_known: WeakValueDictionary[Hashable, PackedConstant] = WeakValueDictionary()


class PackedConstants:
    """The packed constants of a program, one after another in large buffers.

    A constant that another program of the process has packed already, byte for byte, is shared.  To
    find that out, it is packed into a temporary buffer and compared: so sharing takes no time when
    nothing is shared, and the original weights need not be kept.

    Args:
        threads: the number of threads that pack.
        guarded: whether each constant is between guard pages, and shared with no other program.
        packed: constants of another program; those that equal functions make are taken from there.
    """

    def __init__(self, threads: int, guarded: bool, packed: PackedConstants | None = None) -> None:
        self._threads = threads
        self._guarded = guarded
        self._before = {} if packed is None else packed._all
        self._all: dict[Hashable, PackedConstant] = {}
        self._chunk: AlignedMemory | None = None
        self._used = 0
        self._beside: AlignedMemory | None = None

    @property
    def bytes(self) -> int:
        """The size of all constants, including those that are shared."""
        return sum(constant.bytes for constant in self.all)

    @property
    def all(self) -> list[PackedConstant]:
        return list(dict.fromkeys(self._all.values()))

    def add(self, make: Callable[[], Array]) -> PackedConstant:
        """The constant that a function makes; equal functions are called once."""
        key = _key(make)
        if key not in self._all:
            self._all[key] = self._before.get(key) or self._made(make)
        return self._all[key]

    def finish(self) -> None:
        """Frees what only packing needed."""
        self._before, self._chunk, self._beside = {}, None, None

    def _made(self, make: Callable[[], Array]) -> PackedConstant:
        """Packs a constant, or finds an equal one that another program has packed."""
        if isinstance(make, Packed):
            dtype, size, source = np.dtype(np.float32), make.size, make.weight()
        else:
            source = np.ascontiguousarray(make()).reshape(-1)
            dtype, size = source.dtype, source.size

        def write(target: Array) -> None:
            if isinstance(make, Packed):
                make.write(target, source, self._threads)
            else:
                target[...] = source

        if self._guarded:
            memory = AlignedMemory(size * dtype.itemsize, Guard.END)
            constant = PackedConstant(memory, 0, dtype, size)
            write(constant.array())
            return constant
        recipe = make.recipe if isinstance(make, Packed) else None
        key = (recipe, dtype, size, source.shape, _sample(source))
        with _lock:
            known = _known.get(key)
        if known is None:
            constant = self._placed(dtype, size)
            write(constant.array())
        else:
            candidate = self._room(known.bytes).array(dtype, (size,))
            write(candidate)
            if _memcmp(known.address, candidate.ctypes.data, known.bytes) == 0:
                return known
            constant = self._placed(dtype, size)
            constant.array()[...] = candidate
        with _lock:
            _known.setdefault(key, constant)
        return constant

    def _placed(self, dtype: np.dtype, size: int) -> PackedConstant:
        """Allocates a constant in the last buffer, or in a new one."""
        needed = size * dtype.itemsize
        if self._chunk is None or self._used + needed > self._chunk.size:
            # Pages of a buffer that are never written take no memory.
            self._chunk, self._used = AlignedMemory(max(needed, _CHUNK_BYTES)), 0
        constant = PackedConstant(self._chunk, self._used, dtype, size)
        self._used += -(-needed // _ALIGNMENT) * _ALIGNMENT
        return constant

    def _room(self, size: int) -> AlignedMemory:
        """The temporary buffer in which constants are packed to be compared."""
        if self._beside is None or self._beside.size < size:
            self._beside = AlignedMemory(size)
        return self._beside


def _key(make: Callable[[], Array]) -> Hashable:
    """A key that is equal for functions that make the same constant."""
    if isinstance(make, (Packed, PackedVectors)):
        return make.key
    if isinstance(make, partial) and all(isinstance(argument, Hashable) for argument in make.args):
        return make.func, make.args
    return make


def _sample(array: Array) -> bytes:
    """A digest of some elements of an array."""
    flat = array.reshape(-1)
    chosen = flat[:: max(1, flat.size // _SAMPLES)]
    return hashlib.blake2b(chosen.tobytes(), digest_size=16).digest()


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
