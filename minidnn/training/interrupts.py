"""Ctrl-C between steps, never within one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Has Ctrl-C wait for the end, so that what belongs together is done or not; a second one does
    not wait.

    Python sees a signal when native code returns: a step's states have changed by then, and what
    counts the steps has not.
    """
    usual = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(usual):
        yield  # there is no such signal here, or none that raises
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            usual(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        usual(came[0], None)
