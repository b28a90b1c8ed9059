"""A progress bar of a few lines, for terminals only."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 24
_INTERVAL = 0.1


class ByteProgress:
    """One line that is written again and again; silent when it is off.

    Args:
        label: what is under way.
        on: None means: when standard error is a terminal.
    """

    def __init__(self, label: str, on: bool | None = None, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._on = self._stream.isatty() if on is None else on
        self._label = label
        self._began = self._drawn = time.monotonic()
        self._first: int | None = None
        self._length = 0

    def update(self, done: int, total: int | None) -> None:
        """Says how many of how many bytes (None: unknown) are there."""
        now = time.monotonic()
        if self._first is None:
            self._first = done  # what an earlier download left does not count as speed
        if self._on and (now - self._drawn >= _INTERVAL or done == total):
            self._drawn = now
            self._draw(done, total, (done - self._first) / max(now - self._began, 1e-3))

    def close(self) -> None:
        """Ends the line."""
        if self._length:
            print(file=self._stream, flush=True)
            self._length = 0

    def _draw(self, done: int, total: int | None, speed: float) -> None:
        text = f"{self._label} {_size(done)}"
        if total:
            filled = min(_WIDTH, _WIDTH * done // total)
            bar = "#" * filled + "." * (_WIDTH - filled)
            text = f"{self._label} [{bar}] {100 * done / total:3.0f} % of {_size(total)}"
        if speed > 0:
            text += f", {_size(speed)}/s"
            if total and total > done:
                seconds = int((total - done) / speed)
                text += f", {seconds // 60}:{seconds % 60:02d} left"
        print("\r" + text.ljust(self._length), end="", file=self._stream, flush=True)
        self._length = len(text)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
