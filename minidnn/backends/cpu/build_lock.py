"""Taking turns at compiling."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ...cache import root


@contextlib.contextmanager
def one_builder(limit: float) -> Iterator[None]:
    """One process (or thread) compiles at a time: a second would most likely do the same work.

    It waits at most ``limit`` seconds, for the one before may hang, and goes without its turn
    where the cache folder cannot be written.
    """
    import fcntl

    with contextlib.ExitStack() as stack:
        try:
            root().mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = stack.enter_context((root() / "ispc-build.lock").open("a"))
        except OSError:
            lock = None
        end = time.monotonic() + limit
        while lock is not None and time.monotonic() < end:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Closing alone would not release it if a fork has copied the file.
                stack.callback(fcntl.flock, lock, fcntl.LOCK_UN)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # a file system without locks
                break
        yield
