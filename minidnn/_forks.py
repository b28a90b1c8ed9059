"""Fork safety: how this process was forked, and a lock that a fork cannot leave held for ever."""

from __future__ import annotations

import os
import threading
import weakref

#: The id of the process that imported minidnn; children of a fork inherit it.
imported_by = os.getpid()


#: Whether other Python threads ran before the last fork; and whether they did before any fork that
#: led to this process.
_had_threads = False
_is_beside_threads = False


def beside_threads() -> bool:
    """Whether this process, or one of its parents, was forked while other threads ran: locks that
    these held in libraries stay locked."""
    return _is_beside_threads


class ForkLock:
    """A context manager like :class:`threading.Lock` or :class:`threading.RLock`, safe in forks.

    A child has only the thread that forked; a lock that another thread held at that moment would
    never be released there, so the child gets a new one.

    Args:
        reentrant: whether the thread that holds the lock may acquire it again.
    """

    def __init__(self, reentrant: bool = False) -> None:
        self._make = threading.RLock if reentrant else threading.Lock
        self._owner, self._depth = 0, 0
        self._renew()
        _all.add(self)

    def _renew(self) -> None:
        if not self._depth or self._owner != threading.get_ident():
            self._lock, self._depth = self._make(), 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner = threading.get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self._lock.release()


_all: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_all):
        lock._renew()


def _note_threads() -> None:
    global _had_threads
    _had_threads = threading.active_count() > 1


def _keep_noted() -> None:
    global _is_beside_threads
    _is_beside_threads = _is_beside_threads or _had_threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
    os.register_at_fork(before=_note_threads, after_in_child=_keep_noted)
