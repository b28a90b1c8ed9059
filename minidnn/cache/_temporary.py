"""Temporary folders: removed when they are done with, or by the next process if killed before.

Each is locked as long as its process lives, so that whoever finds one without a lock knows that
it was left behind, in whatever container its process ran.  A lock on a file ends with the process
that took it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

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
            self._lock, locked = _lock(self.path)
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
        descriptor, locked = _lock(folder)
        if descriptor is not None and locked:
            shutil.rmtree(folder, ignore_errors=True)
            release(descriptor)


def _lock(folder: Path) -> tuple[int | None, bool | None]:
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
