"""Turns of pytest-xdist's workers: a test marked ``alone`` runs while no other test does.

What measures time, or starts as many processes as there are cores, is marked so.  All others run
beside each other.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """Locks that workers share by a folder: for one test alone, or for any number of others."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
        self._door, self._room = (os.open(folder / name, flags) for name in ("door", "room"))
        self._is_alone = False

    @contextmanager
    def taken(self, alone: bool, then_alone: bool = False) -> Iterator[None]:
        """Waits for a turn and holds it.  Who waits to be alone stands in the door, where others
        wait behind it, so that its turn comes as soon as the tests that run have ended.  It stays
        for its next test if that is one to be ``alone``, too: the others wait once for both."""
        if not self._is_alone:
            fcntl.flock(self._door, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            finally:
                fcntl.flock(self._door, fcntl.LOCK_UN)
        self._is_alone = alone and then_alone
        try:
            yield
        finally:
            if not self._is_alone:
                fcntl.flock(self._room, fcntl.LOCK_UN)
