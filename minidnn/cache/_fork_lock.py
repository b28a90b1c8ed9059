"""A lock that a fork cannot leave locked for ever."""

from __future__ import annotations

import os
import threading


class ForkLock:
    """Like :class:`threading.Lock` as a context manager.

    A child has only the thread that forked; a lock that another thread held at that moment would
    never be released there, so the child gets a new one.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
