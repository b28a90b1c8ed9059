"""The base class of descriptors, which own one cuDNN object each and free it exactly once, and a
bounded cache for objects that own descriptors.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import ClassVar, Generic, Self, TypeVar

from minidnn.cudnn import library
from minidnn.cudnn.errors import ArgumentError, check

_created: Counter[str] = Counter()
_destroyed: Counter[str] = Counter()
# Reentrant: a descriptor may be destroyed by the garbage collector, which may run in here.
_lock = threading.RLock()


def count_created(kind: str) -> None:
    """Note that a descriptor of this kind was created."""
    with _lock:
        _created[kind] += 1


def count_destroyed(kind: str) -> None:
    """Note that a descriptor of this kind was destroyed."""
    with _lock:
        _destroyed[kind] += 1


class Descriptor:
    """An owned ``cudnn...Descriptor_t``.

    Use it as a context manager, call :meth:`close`, or drop the last reference: the object is
    freed at that moment.  :attr:`value` is the address for cuDNN's functions.
    """

    __slots__ = ("__weakref__", "_value")

    #: Kind in the names of the C functions, as in ``cudnnCreate<KIND>Descriptor``.
    KIND: ClassVar[str]

    def __init__(self) -> None:
        self._value = 0
        function = f"cudnnCreate{self.KIND}Descriptor"
        created = ctypes.c_void_p()
        check(getattr(library.load(), function)(ctypes.byref(created)), function)
        self._value = created.value or 0
        count_created(self.KIND)

    @property
    def value(self) -> int:
        """The address of the descriptor; an error once it is closed."""
        if not self._value:
            raise ArgumentError(f"this {type(self).__name__} is closed and cannot be used any more")
        return self._value

    @property
    def closed(self) -> bool:
        """Whether the descriptor has been freed."""
        return not self._value

    def close(self) -> None:
        """Free the descriptor; a second call does nothing."""
        value, self._value = self._value, 0
        if value:
            function = f"cudnnDestroy{self.KIND}Descriptor"
            status = getattr(library.load(), function)(value)
            count_destroyed(self.KIND)
            check(status, function)

    def call(self, function: str, *arguments: object, **context: object) -> None:
        """Call a function whose first argument is this descriptor."""
        check(getattr(library.load(), function)(self.value, *arguments), function, context)

    def query_ints(self, function: str, count: int) -> list[int]:
        """Return the ``count`` 32-bit integers that such a function writes to further arguments."""
        values = [ctypes.c_int() for _ in range(count)]
        self.call(function, *map(ctypes.byref, values))
        return [value.value for value in values]

    def query_size(self, function: str) -> int:
        """Return the size in bytes that such a function writes to its other argument."""
        size = ctypes.c_size_t()
        self.call(function, ctypes.byref(size))
        return size.value

    def _set(self, function: str, *arguments: object, **context: object) -> None:
        """Call a setter of this descriptor; when it fails the descriptor is freed."""
        status = getattr(library.load(), function)(self.value, *arguments)
        if status:
            try:
                check(status, function, context)
            finally:
                self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter exit modules are being torn down, and the process's end frees the rest;
        # an argument's default outlives the module's globals.
        if getattr(self, "_value", 0) and not finalizing():
            self.close()


def live_descriptors() -> dict[str, int]:
    """Return how many descriptors of each kind exist now: created minus destroyed."""
    with _lock:
        return {kind: _created[kind] - _destroyed[kind] for kind in sorted(_created)}


def created_descriptors() -> dict[str, int]:
    """Return how many descriptors of each kind this process has created."""
    with _lock:
        return dict(sorted(_created.items()))


Value = TypeVar("Value")


class Memo(Generic[Value]):
    """A cache of bounded size that drops its entries by generations.

    After every ``limit`` new entries, those that were not used meanwhile are dropped.  So an entry
    that was just looked up stays alive for at least ``limit`` more entries, and a call that holds
    the address of a descriptor can rely on it.
    """

    __slots__ = ("_limit", "_older", "_recent")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._recent: dict[Hashable, Value] = {}
        self._older: dict[Hashable, Value] = {}

    def get(self, key: Hashable) -> Value | None:
        """Return the value that is cached under ``key``, or None."""
        found = self._recent.get(key)
        if found is None and self._older:
            found = self._older.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: Hashable, value: Value) -> Value:
        """Remember ``value`` and return it."""
        if len(self._recent) >= self._limit:
            self._older = self._recent
            self._recent = {}
        self._recent[key] = value
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._recent, self._older = {}, {}

    def __len__(self) -> int:
        return len({**self._older, **self._recent})
