"""The root folder of the cache, its fallback where it cannot be written, and temporary folders.

Programs and libraries are compiled in temporary folders and then moved into the cache.  Such a
folder is removed after use, or by a later process if its own was killed before.  Its process holds
a lock on it, which the operating system releases when the process ends: a folder without a lock
was left behind, in whatever container its process ran.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .._forks import ForkLock
from ..errors import MiniDNNError, MiniDNNWarning
from ._trust import UntrustedError, open_folder, why_unsafe

if sys.platform != "win32":
    import fcntl

#: Descriptors of the files and folders that this process has locked.
_descriptors: set[int] = set()


def try_lock(descriptor: int) -> bool | None:
    """Locks an open file or folder; False if another process has the lock, None where there are
    no locks.

    A forked child closes its copy of the descriptor; else the lock would last as long as the child.
    """
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    _descriptors.add(descriptor)
    return True


def release(descriptor: int) -> None:
    """Releases the lock that :func:`try_lock` took in this process, and closes the file."""
    if sys.platform != "win32" and descriptor in _descriptors:
        _descriptors.discard(descriptor)
        # Closing alone would not release it if a fork has copied the descriptor just now.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _forget() -> None:
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


PREFIX = "minidnn-work-"


class TemporaryFolder:
    """A new, locked folder in ``base`` for this user alone.

    Making one first removes the folders that dead processes left in ``base``.
    """

    def __init__(self, base: Path) -> None:
        sweep(base)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            self._lock, locked = _locked(self.path)
            # Before the lock was taken, a sweeping process may have removed the folder.
            if locked is None or (locked and self.path.is_dir()):
                return
            self._unlock()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            release(self._lock)
            self._lock = None


def sweep(base: Path) -> None:
    """Removes the temporary folders of processes that are dead."""
    try:
        with os.scandir(base) as items:
            names = [item.name for item in items if item.name.startswith(PREFIX)]
    except OSError:  # making a folder there raises the same, with the reason
        return
    for name in names:
        folder = base / name
        descriptor, locked = _locked(folder)
        if descriptor is not None and locked:
            shutil.rmtree(folder, ignore_errors=True)
            release(descriptor)


def _locked(folder: Path) -> tuple[int | None, bool | None]:
    """Locks a folder of this user: returns its open descriptor, None without a lock, and the
    result of :func:`try_lock`, False for a folder that is gone or another user's."""
    if not hasattr(os, "geteuid"):
        return None, None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, or somebody else's
        return None, False
    locked = os.fstat(descriptor).st_uid == os.geteuid() and try_lock(descriptor)
    if locked:
        return descriptor, True
    os.close(descriptor)
    return None, locked


log = logging.getLogger("minidnn.cache")

_lock = ForkLock()
#: The private folder by process id: a forked child has its parent's, too.
_private: dict[int, Path] = {}
#: The subjects of warnings that were given.
_warned: dict[str, None] = {}
#: Why a root folder is not trusted, by its path.
_refused: dict[str, str] = {}


def root() -> Path:
    """The cache folder: ``MINIDNN_CACHE``, or ``minidnn`` in the platform's cache folder.

    The folder need not exist.  Without a home folder it is a private one, removed at exit.
    """
    chosen = os.environ.get("MINIDNN_CACHE", "")
    try:
        if chosen:
            return Path(os.path.abspath(os.path.expanduser(chosen)))
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "minidnn"
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA", "")
            return (Path(local) if local else Path.home()) / "minidnn" / "cache"
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification says to ignore a relative path.
        return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "minidnn"
    except RuntimeError as error:  # Path.home() found no home folder
        warn_once("no home folder", f"no cache folder: {error}")
        return private_folder()


def private_folder() -> Path:
    """A temporary folder of this process, made on first use and removed at exit."""
    pid = os.getpid()  # after a fork the child must neither use nor remove its parent's folder
    with _lock:
        if pid not in _private:
            folder = TemporaryFolder(Path(tempfile.gettempdir()))
            _private[pid] = folder.path
            atexit.register(_remove_private, pid, folder)
        return _private[pid]


def existing_private_folder() -> Path | None:
    """The folder of :func:`private_folder`, if it was made already."""
    return _private.get(os.getpid())


def _remove_private(pid: int, folder: TemporaryFolder) -> None:
    if os.getpid() == pid:
        folder.remove()


def not_used(error: OSError) -> None:
    """Warns once that the cache folder cannot be written, or is not trusted and so not used."""
    untrusted = isinstance(error, UntrustedError)
    if untrusted:
        _refused[str(root())] = f"which is not used, since {error}"
    doing = "is not used" if untrusted else "cannot be written"
    warn_once(f"{root()} {doing}", f"the cache folder {root()} {doing}: {error}")


def why_not_used() -> str | None:
    """Why the entries in the cache folder are not trusted, if that was found so far."""
    return _refused.get(str(root()))


def warn_once(subject: str, problem: str) -> None:
    """Warns that a temporary folder replaces the cache, once in a process for each subject."""
    with _lock:
        if subject in _warned:
            return
        _warned[subject] = None
    text = (
        f"{problem}; until the process ends a temporary folder is used instead, so work is "
        "repeated in every process: set MINIDNN_CACHE to a folder that can be written"
    )
    log.warning(text)
    warnings.warn(text, MiniDNNWarning, stacklevel=3)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yields a folder to compile in, which is removed at the end.

    It is in the system's temporary folder, or in the cache where other users could replace the
    temporary folder's files (one that all may write to, without the sticky bit).

    Raises:
        MiniDNNError: others could replace files in both.
        OSError: the folder cannot be made.
    """
    folder = TemporaryFolder(_base())
    try:
        yield folder.path
    finally:
        folder.remove()


def _base() -> Path:
    """The folder in which temporary folders are made."""
    system = Path(os.path.realpath(tempfile.gettempdir()))
    reason = why_unsafe(system)
    if reason is None:
        return system
    cache_folder = Path(os.path.realpath(root() / "temporary"))
    try:
        with open_folder(root(), "temporary", create=True):
            second = why_unsafe(cache_folder)
    except OSError as error:
        second = str(error)
    if second is not None:
        raise MiniDNNError(
            f"there is no folder to compile in that others cannot write to: {reason}; nor in the "
            f"cache: {second}; set TMPDIR to a folder of your own"
        )
    return cache_folder
