"""Taking turns at a GPU: what two processes time at once is wrong in both, and remembered.

Building engines and compiling need no turn, so several processes prepare side by side.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from minidnn.cache import LockFile
from minidnn.gpu import cupy

log = logging.getLogger(__name__)

LIMIT_SECONDS = 300.0
"""A turn that does not come in this time is not waited for: its holder may hang."""
LONG_SECONDS = 1.0
"""After which somebody who waits says for whom."""
_POLL_SECONDS = 0.003


@contextmanager
def turn(index: int, limit: float = LIMIT_SECONDS) -> Iterator[bool]:
    """Meanwhile no other thread or process that asks for its turn at this GPU measures.

    The lock is a file in the cache folder, named by the GPU, and goes with the process that
    holds it.  Threads that have their turn may ask again.  False, with a warning, if ``limit``
    seconds have passed; where the folder cannot be written only this process's threads take turns.
    """
    with turn_at(_name(index), limit) as alone:
        yield alone


@contextmanager
def turn_at(name: str, limit: float = LIMIT_SECONDS) -> Iterator[bool]:
    """:func:`turn` at whatever has that name."""
    # A forked child has a lock of its own, and its parent's is not for it to release.
    process = os.getpid()
    lock = _turns.setdefault((process, name), _Turn(name))
    alone = lock.acquire(limit)
    try:
        yield alone
    finally:
        if alone and os.getpid() == process:
            lock.release()


class _Turn:
    """A lock among the threads of this process, then one among processes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads = threading.RLock()
        self._depth = 0
        self._file: LockFile | None = None
        self._given_up = False

    def acquire(self, limit: float) -> bool:
        """Whether the turn has come.  After a turn that did not come none is waited for until
        one comes at once: a holder that hangs costs the limit only once."""
        limit = 0.0 if self._given_up else max(0.0, limit)
        end = time.monotonic() + limit
        if not self._threads.acquire(timeout=limit):
            return self._late(limit)
        try:
            if self._depth == 0 and not self._lock_file(end):
                self._threads.release()
                return self._late(limit)
        except BaseException:
            self._threads.release()
            raise
        self._depth += 1
        self._given_up = False
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self._file is not None:
            self._file.close()
            self._file = None
        self._threads.release()

    def _late(self, limit: float) -> bool:
        if not self._given_up:
            self._given_up = True
            log.warning(
                "another process still measures on %s after %.0f s; going on beside it, so "
                "measured times may be too long",
                self._name,
                limit,
            )
        return False

    def _lock_file(self, end: float) -> bool:
        """Waits for the other processes; true too where they cannot be seen."""
        file = LockFile.open(self._name)
        if file is None:
            return True
        try:
            locked = self._wait(file, end)
        except BaseException:
            file.close()
            raise
        if locked:
            self._file = file
        else:
            file.close()
        return locked

    def _wait(self, file: LockFile, end: float) -> bool:
        begin, said = time.monotonic(), False
        while not file.try_lock():
            now = time.monotonic()
            if now >= end:
                return False
            if not said and now - begin > LONG_SECONDS:
                said = True
                log.warning(
                    "waiting for %s, which measures on %s and holds %s (for at most %.0f s)",
                    *(file.holder(), self._name, file.path, end - begin),
                )
            time.sleep(_POLL_SECONDS)
        return True


_turns: dict[tuple[int, str], _Turn] = {}


def _name(index: int) -> str:
    """What no other GPU of this machine is called: its place on the bus, and its parts' number."""
    runtime = cupy().cuda.runtime
    place = str(runtime.deviceGetPCIBusId(index)).replace(":", "-")
    uuid = runtime.getDeviceProperties(index).get("uuid", b"")
    return f"gpu-{place}-{uuid.hex()}" if isinstance(uuid, bytes) and uuid else f"gpu-{place}"


__all__ = ["turn"]
