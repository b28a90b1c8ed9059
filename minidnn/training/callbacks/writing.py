"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Thread

__all__ = ["CheckpointWriter"]


class CheckpointWriter:
    """Writes one file at a time, in a thread of its own."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._process = 0

    def start(self, write: Callable[[], None]) -> None:
        """Writes once the file before is there; raises what went wrong with that."""
        self.wait()

        def work() -> None:
            try:
                write()
            except BaseException as error:
                self._error = error

        self._process = os.getpid()
        self._thread = Thread(target=work, name="minidnn-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until what was started is there; raises what went wrong with it."""
        thread, self._thread = self._thread, None
        if thread is not None and self._process == os.getpid():  # a fork has no such thread
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
