"""Signals that clusters send before they end a process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

from minidnn.errors import GraphError

__all__ = ["Signals"]

#: Those that training ends by; at others it saves and goes on.
ENDS = ("SIGTERM", "SIGINT")
VALID = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP")


class Signals:
    """Notes signals instead of letting the process end, from :meth:`begin` to :meth:`end`.

    A handler that a program has set itself stays.  The second signal of a kind that ends training
    does not wait: it does what it did before.
    """

    def __init__(self, owner: object, names: Sequence[str]) -> None:
        given = [names] if isinstance(names, str) else list(names)
        for name in given:
            if name not in VALID:
                raise GraphError(
                    f"{type(owner).__name__}: signals={name!r:.80}; valid are {', '.join(VALID)}"
                )
        self.names = tuple(given)
        self._before: dict[int, Any] = {}

    def begin(self, note: Callable[[str], None]) -> None:
        """Has ``note`` called with the name of each signal that comes."""
        self.end()
        if current_thread() is not main_thread():
            return  # signals come to the main thread alone

        def came(number: int, frame: FrameType | None) -> None:
            name = signal.Signals(number).name
            if name in ENDS:
                signal.signal(number, self._before[number])
            note(name)

        for name in self.names:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.SIG_DFL
                signal.signal(number, came)

    def end(self) -> None:
        """Signals do again what they did before."""
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}
