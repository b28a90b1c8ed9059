"""Python's search for garbage, put off while networks are compiled.

Compiling makes millions of objects, few of which are garbage that only the search finds, and each
full search looks at all objects of the process: a quarter of the time that planning takes.
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
"""How often each thread is in :func:`garbage_later`."""
_was_enabled = False


@contextmanager
def garbage_later() -> Iterator[None]:
    """Meanwhile no search begins by itself, in any thread; one that the user turned off stays so.

    It may be entered again, and by several threads.
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
            _leave()


def _leave() -> None:
    """Lets searches begin again when no thread is left."""
    for thread in [thread for thread, count in _inside.items() if not count]:
        del _inside[thread]
    if not _inside and _was_enabled:
        gc.enable()


def _leave_others() -> None:
    """In a child of a fork, which has only the thread that forked."""
    if _inside:
        for thread in _inside.keys() - {threading.get_ident()}:
            del _inside[thread]
        _leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_others)
