"""Shared objects with compiled kernels, loaded into this process."""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from ..._forks import ForkLock
from ...cache import temporary_folder
from ...errors import CompileError


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
        place: the path to load it from.

    Raises:
        CompileError: the file cannot be loaded.
    """

    def __init__(self, path: Path, place: str) -> None:
        self.path = path
        self.handle = _load(path, place)

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


def load(path: Path, place: str) -> SharedObject:
    """The library of that file, loaded once in a process; made to be given to ``Store.use``."""
    with _lock:
        if str(path) not in _loaded:
            _loaded[str(path)] = SharedObject(path, place)
        return _loaded[str(path)]


def _load(path: Path, place: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(place)
    except OSError as error:
        first = error
    # A cache folder that is mounted noexec: the same bytes from the temporary folder.
    with temporary_folder() as folder:
        copy = folder / path.name
        try:
            shutil.copyfile(place, copy)
            return ctypes.CDLL(str(copy))
        except OSError as error:
            raise CompileError(
                f"the compiled library {path} cannot be loaded: {first}; a copy in "
                f"{folder} neither: {error}. If both are mounted noexec, set MINIDNN_CACHE to a "
                "folder that is not"
            ) from error
