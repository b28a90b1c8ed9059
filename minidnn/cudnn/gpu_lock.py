"""A lock per GPU, among threads and processes, for whoever times kernels.

Two processes that time kernels on one GPU at once both get wrong times, and both cache them.
Building engines and compiling need no lock, so several processes prepare side by side.
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
"""The longest wait for the lock in seconds: after that its holder may hang."""
LONG_SECONDS = 1.0
"""The seconds of waiting after which a warning names the holder of the lock."""
_POLL_SECONDS = 0.003


@contextmanager
def gpu_lock(index: int, limit: float = LIMIT_SECONDS) -> Iterator[bool]:
    """Holds the lock of a GPU: no other thread or process that takes it measures meanwhile.

    The lock is a file in the cache folder, named after the GPU, and is released when its process
    ends.  A thread that holds it may take it again.  Yields False, with a warning, if ``limit``
    seconds have passed; where the folder cannot be written only this process's threads are locked.
    """
    with lock_at(_name(index), limit) as acquired:
        yield acquired


@contextmanager
def lock_at(name: str, limit: float = LIMIT_SECONDS) -> Iterator[bool]:
    """Holds the lock of that name, as :func:`gpu_lock` does that of a GPU."""
    # A forked child has a lock of its own and must not release that of its parent.
    process = os.getpid()
    lock = _turns.setdefault((process, name), _NamedLock(name))
    acquired = lock.acquire(limit)
    try:
        yield acquired
    finally:
        if acquired and os.getpid() == process:
            lock.release()


class _NamedLock:
    """A reentrant lock among the threads of this process, and a file lock among processes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads = threading.RLock()
        self._depth = 0
        self._file: LockFile | None = None
        self._given_up = False

    def acquire(self, limit: float) -> bool:
        """Returns whether the lock was acquired within ``limit`` seconds.

        After a timeout no call waits until one succeeds at once: a holder that hangs costs the
        limit only once.
        """
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
            # Another thread that still waits for the file has not begun: a process holds that.
            holder = "another thread of this process" if self._depth else "another process"
            log.warning(
                "%s still measures on %s after %.0f s; going on beside it, so measured times may "
                "be too long",
                *(holder, self._name, limit),
            )
        return False

    def _lock_file(self, end: float) -> bool:
        """Waits for the file lock until ``end``; also True where there is no file to lock."""
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
        start, warned = time.monotonic(), False
        while not file.try_lock():
            now = time.monotonic()
            if now >= end:
                return False
            if not warned and now - start > LONG_SECONDS:
                warned = True
                log.warning(
                    "waiting for %s, which measures on %s and holds %s (for at most %.0f s)",
                    *(file.holder(), self._name, file.path, end - start),
                )
            time.sleep(_POLL_SECONDS)
        return True


_turns: dict[tuple[int, str], _NamedLock] = {}


def _name(index: int) -> str:
    """Returns a name that is unique among this machine's GPUs: PCI bus id and UUID."""
    runtime = cupy().cuda.runtime
    bus_id = str(runtime.deviceGetPCIBusId(index)).replace(":", "-")
    uuid = runtime.getDeviceProperties(index).get("uuid", b"")
    return f"gpu-{bus_id}-{uuid.hex()}" if isinstance(uuid, bytes) and uuid else f"gpu-{bus_id}"


__all__ = ["gpu_lock"]
