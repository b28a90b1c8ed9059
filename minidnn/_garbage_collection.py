"""Python's cyclic garbage collection, paused while networks are compiled.

Compiling makes millions of objects, few of which are garbage in cycles, and each full collection
looks at all objects of the process: a quarter of the time that planning takes.
"""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from minidnn._forks import ForkLock

_lock = ForkLock()
_inside: Counter[int] = Counter()
"""How many times each thread is inside :func:`garbage_collection_paused`, by thread id."""
_was_enabled = False


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Disables automatic collection in all threads meanwhile; if the user disabled it, it stays so.

    It is reentrant, and several threads may be in it.
    """
    global _was_enabled
    thread = threading.get_ident()
    with _lock:
        if not _inside:
            _was_enabled = gc.isenabled()
            gc.disable()
        _inside[thread] += 1
    try:
        yield
    finally:
        with _lock:
            _inside[thread] -= 1
            _resume()


def _resume() -> None:
    """Enables collection again when no thread is inside any more."""
    for thread in [thread for thread, count in _inside.items() if not count]:
        del _inside[thread]
    if not _inside and _was_enabled:
        gc.enable()


def _leave_others() -> None:
    """Forgets the other threads in a child of a fork, which has only the one that forked."""
    if _inside:
        for thread in _inside.keys() - {threading.get_ident()}:
            del _inside[thread]
        _resume()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_others)
