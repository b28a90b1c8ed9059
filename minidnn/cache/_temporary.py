"""Temporary folders: removed when they are done with, or by the next process if killed before.

Each is locked as long as its process lives, so that whoever finds one without a lock knows that
it was left behind, in whatever container its process ran.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from ._held import release, try_lock

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
