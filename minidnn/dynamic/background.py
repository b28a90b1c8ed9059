"""What is done beside calls: one job after another, in a thread that ends when none is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from minidnn._forks import ForkLock


class Background:
    """Jobs by name, of which none waits twice.  A child of a fork has none of its parent's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = ForkLock()
        self._jobs: dict[Hashable, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None

    def do(self, name: Hashable, job: Callable[[], None]) -> None:
        """Does a job later, unless one of that name waits already, or is being done."""
        with self._lock:
            alive = self._thread is not None and self._thread.is_alive()
            if not alive:
                self._jobs.clear()  # those of the parent of a fork
            self._jobs.setdefault(name, job)
            if not alive:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Returns when no job is left."""
        while True:
            with self._lock:
                thread = self._thread if self._jobs else None
            if thread is None or not thread.is_alive():
                return
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                name, job = next(iter(self._jobs.items()))
            try:
                job()
            finally:
                with self._lock:
                    self._jobs.pop(name, None)
