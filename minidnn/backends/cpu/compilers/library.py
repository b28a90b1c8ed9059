"""Shared objects with compiled kernels or the native runner, loaded into this process."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...._forks import ForkLock
from ....errors import CompileError

if sys.platform == "linux":
    import fcntl


@dataclass(frozen=True)
class NativeFunction:
    """One compiled function: ``void name(void **pointers, int begin, int end, void *scratch)``.

    ``address`` stays valid as long as the process lives: a library is never unloaded, since a run
    in another thread may be inside it.
    """

    name: str
    address: int = field(repr=False)
    library: Path = field(repr=False)


class SharedObject:
    """A loaded shared object.

    Args:
        path: of its file, for messages.
        handle: the loaded library.
        data: the bytes that it was loaded from, if that is no file of the cache.
    """

    def __init__(self, path: Path, handle: ctypes.CDLL, data: memoryview | None = None) -> None:
        self.path = path
        self.handle = handle
        self._data = data

    def content(self) -> bytes | memoryview:
        """The bytes of the library.

        Raises:
            CompileError: the cache has them no longer.
        """
        if self._data is not None:
            return self._data
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise CompileError(f"{self.path} is gone; compile the network again") from error
        # A file of the cache has its checksum in its name: it is what was loaded, or refused.
        if hashlib.sha256(data).hexdigest()[:32] != self.path.name.split("-")[1][:32]:
            raise CompileError(f"{self.path} has been changed; compile the network again")
        return data

    def kernel(self, name: str) -> NativeFunction:
        """The function of that name.

        Raises:
            CompileError: the library has no such function.
        """
        try:
            function = getattr(self.handle, name)
        except AttributeError:
            raise CompileError(
                f"{self.path} has no function {name!r}; is it declared 'export' in its source?"
            ) from None
        return NativeFunction(name, ctypes.cast(function, ctypes.c_void_p).value or 0, self.path)


_lock = ForkLock()
_loaded: dict[str, SharedObject] = {}
_next_descriptor = 0


def load(path: Path, place: str) -> SharedObject:
    """The library of a file in the cache, loaded once in a process: for ``CacheStore.use``.

    Raises:
        CompileError: the file cannot be loaded.
    """

    def opened() -> ctypes.CDLL:
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            first = error
        try:  # a cache folder that is mounted noexec
            return _from_temporary(Path(place).read_bytes(), path.name)
        except OSError as error:
            raise CompileError(
                f"the compiled library {path} cannot be loaded: {first}; a copy in the temporary "
                f"folder neither: {error}. If both are mounted noexec, set MINIDNN_CACHE to a "
                "folder that is not"
            ) from error

    return _once(str(path), path, opened)


def load_bytes(data: memoryview, digest: str, path: Path) -> SharedObject:
    """The library with this content, loaded once in a process.

    It is loaded from memory that has no name in any folder, so that nobody can exchange it and
    nothing is left behind; where the system has no such memory, from a private temporary folder.

    Args:
        digest: of ``data``.
        path: of the file that it is a part of, for messages.

    Raises:
        CompileError: it cannot be loaded.
    """

    def opened() -> ctypes.CDLL:
        try:
            return _from_memory(data)
        except (OSError, AttributeError) as error:  # Linux alone has memfd_create
            first = error
        try:
            return _from_temporary(data, f"{digest[:16]}.so")
        except OSError as error:
            raise CompileError(f"{path}: its code cannot be loaded: {error}; {first}") from error

    return _once(digest, path, opened, data)


def loaded_from(path: Path) -> SharedObject:
    """The library that :func:`load` has loaded from there."""
    return _loaded[str(path)]


def _once(
    key: str, path: Path, opened: Callable[[], ctypes.CDLL], data: memoryview | None = None
) -> SharedObject:
    with _lock:
        if key not in _loaded:
            _loaded[key] = SharedObject(path, opened(), data)
        return _loaded[key]


def _from_memory(data: memoryview) -> ctypes.CDLL:
    """Loads a library from an anonymous file in memory."""
    global _next_descriptor
    descriptor = os.memfd_create("minidnn", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        # The loader takes a path that it has loaded before for the same library: so each descriptor
        # has a number of its own.
        unique_descriptor = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _next_descriptor)
    finally:
        os.close(descriptor)
    try:
        _next_descriptor = unique_descriptor + 1
        return ctypes.CDLL(f"/proc/self/fd/{unique_descriptor}")
    finally:
        os.close(unique_descriptor)


def _from_temporary(data: bytes | memoryview, name: str) -> ctypes.CDLL:
    from ....cache import temporary_folder  # a process that loads from memory needs none of it

    with temporary_folder() as folder:
        copy = folder / name
        copy.write_bytes(data)
        return ctypes.CDLL(str(copy))


SOURCES = Path(__file__).parent.parent / "runner"


def sources_digest() -> str:
    """A digest of the native runner's sources: runners of equal digests are interchangeable."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
