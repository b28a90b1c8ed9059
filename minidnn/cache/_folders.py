"""Where the cache is, what replaces it when it cannot be written, and temporary folders.

Programs and libraries are made in temporary folders before they get their place in the cache.  Such
a folder is removed when it is done with, or by the next process if its own was killed before.  Each
is locked as long as its process lives, so that whoever finds one without a lock knows that it was
left behind, in whatever container its process ran.  A lock on a file ends with the process that
took it.
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

_descriptors: set[int] = set()


def try_lock(descriptor: int) -> bool | None:
    """Takes the lock of an open file or folder if nobody has it; None where there are no locks.

    A child of a fork gives its copy of the descriptor up, else the lock would last as long as the
    child.
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
    """Gives back the lock that :func:`try_lock` took in this process, and closes the file."""
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
    """A new folder in ``base`` for this user alone; what dead processes left there is removed."""

    def __init__(self, base: Path) -> None:
        sweep(base)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            self._lock, locked = _locked(self.path)
            # Somebody who sweeps may just have taken it for one that was left behind.
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
        with os.scandir(base) as found:
            names = [item.name for item in found if item.name.startswith(PREFIX)]
    except OSError:  # what is wrong with it is told by whoever makes a folder there
        return
    for name in names:
        folder = base / name
        descriptor, locked = _locked(folder)
        if descriptor is not None and locked:
            shutil.rmtree(folder, ignore_errors=True)
            release(descriptor)


def _locked(folder: Path) -> tuple[int | None, bool | None]:
    """A descriptor with the lock of one of this user's folders, and whether it could be had
    (None: there are no locks here)."""
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
_private: dict[int, Path] = {}
_warned: dict[str, None] = {}
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
            made = TemporaryFolder(Path(tempfile.gettempdir()))
            _private[pid] = made.path
            atexit.register(_remove_private, pid, made)
        return _private[pid]


def existing_private_folder() -> Path | None:
    """The folder of :func:`private_folder`, if it was needed so far."""
    return _private.get(os.getpid())


def _remove_private(pid: int, folder: TemporaryFolder) -> None:
    if os.getpid() == pid:
        folder.remove()


def not_used(error: OSError) -> None:
    """Says once why the cache folder is left alone."""
    untrusted = isinstance(error, UntrustedError)
    if untrusted:
        _refused[str(root())] = f"which is not used, since {error}"
    doing = "is not used" if untrusted else "cannot be written"
    warn_once(f"{root()} {doing}", f"the cache folder {root()} {doing}: {error}")


def why_not_used() -> str | None:
    """Why what the cache folder has is not used, if that was found so far."""
    return _refused.get(str(root()))


def warn_once(subject: str, problem: str) -> None:
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
    """A folder for what is compiled and then run, removed at the end.

    It lies in the temporary folder, or in the cache where others could exchange the temporary
    folder's files (one that all may write to, without the sticky bit).

    Raises:
        MiniDNNError: others could exchange files in both.
        OSError: it cannot be made.
    """
    made = TemporaryFolder(_base())
    try:
        yield made.path
    finally:
        made.remove()


def _base() -> Path:
    given = Path(os.path.realpath(tempfile.gettempdir()))
    reason = why_unsafe(given)
    if reason is None:
        return given
    own = Path(os.path.realpath(root() / "temporary"))
    try:
        with open_folder(root(), "temporary", create=True):
            second = why_unsafe(own)
    except OSError as error:
        second = str(error)
    if second is not None:
        raise MiniDNNError(
            f"there is no folder to compile in that others cannot write to: {reason}; nor in the "
            f"cache: {second}; set TMPDIR to a folder of your own"
        )
    return own
