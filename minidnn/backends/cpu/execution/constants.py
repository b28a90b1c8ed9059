"""Packed weights, which programs of one process share."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Hashable
from functools import partial
from weakref import WeakValueDictionary

import numpy as np

from ...._forks import ForkLock
from .buffers import AlignedMemory, Array, Guard
from .packing import Packed, PackedVectors

_ALIGNMENT = 64
_CHUNK_BYTES = 32 << 20
_SAMPLES = 1024
"""Elements by which arrays are told apart before their bytes are compared."""


class PackedConstant:
    """Bytes that kernels read, in memory that lives as long as one of its constants is used."""

    def __init__(self, memory: AlignedMemory, offset: int, dtype: np.dtype, size: int) -> None:
        self.memory = memory
        self.address = memory.address + offset
        self.bytes = size * dtype.itemsize
        self._where = (dtype, (size,), offset)

    def array(self) -> Array:
        """All of it, flat."""
        return self.memory.array(*self._where)


_lock = ForkLock()
#: By how it was packed and of what, as far as a sample tells.
_known: WeakValueDictionary[Hashable, PackedConstant] = WeakValueDictionary()


class PackedConstants:
    """The constants of a program, one after another in large buffers.

    What another program of the process has packed already, byte for byte, is used as it lies
    there.  To find that out, it is packed beside it and compared: so sharing takes no time when
    nothing is shared, and needs none of the weights that were packed.

    Args:
        threads: that pack.
        guarded: each constant between guard pages, shared with nobody.
        packed: constants whose functions, where they are the same, need not be called again.
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
        """Of all of them, those that are shared included."""
        return sum(constant.bytes for constant in self.all)

    @property
    def all(self) -> list[PackedConstant]:
        return list(dict.fromkeys(self._all.values()))

    def add(self, make: Callable[[], Array]) -> PackedConstant:
        """The constant that a function makes; it is called once."""
        key = _key(make)
        if key not in self._all:
            self._all[key] = self._before.get(key) or self._made(make)
        return self._all[key]

    def finish(self) -> None:
        """Lets go of what only packing needed."""
        self._before, self._chunk, self._beside = {}, None, None

    def _made(self, make: Callable[[], Array]) -> PackedConstant:
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
            beside = self._room(known.bytes).array(dtype, (size,))
            write(beside)
            if _equal(known.address, beside.ctypes.data, known.bytes):
                return known
            constant = self._placed(dtype, size)
            constant.array()[...] = beside
        with _lock:
            _known.setdefault(key, constant)
        return constant

    def _placed(self, dtype: np.dtype, size: int) -> PackedConstant:
        """A place in the last buffer, or in a new one."""
        needed = size * dtype.itemsize
        if self._chunk is None or self._used + needed > self._chunk.size:
            # Pages that nothing is written to take no memory.
            self._chunk, self._used = AlignedMemory(max(needed, _CHUNK_BYTES)), 0
        constant = PackedConstant(self._chunk, self._used, dtype, size)
        self._used += -(-needed // _ALIGNMENT) * _ALIGNMENT
        return constant

    def _room(self, size: int) -> AlignedMemory:
        if self._beside is None or self._beside.size < size:
            self._beside = AlignedMemory(size)
        return self._beside


def _key(make: Callable[[], Array]) -> Hashable:
    """What is equal for functions that make the same."""
    if isinstance(make, (Packed, PackedVectors)):
        return make.key
    if isinstance(make, partial) and all(isinstance(each, Hashable) for each in make.args):
        return make.func, make.args
    return make


def _sample(array: Array) -> bytes:
    flat = array.reshape(-1)
    chosen = flat[:: max(1, flat.size // _SAMPLES)]
    return hashlib.blake2b(chosen.tobytes(), digest_size=16).digest()


def _equal(one: int, other: int, size: int) -> bool:
    """Whether two pieces of memory have the same bytes."""
    return _memcmp(one, other, size) == 0


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
