"""Telling how far long work is."""

from __future__ import annotations

import sys
from collections.abc import Callable

Watch = Callable[[str, int, int], None]
"""Called with what is being done, and how much of how much is done (0, 0: not known)."""


def terminal_progress() -> Watch:
    """A progress bar on standard error, or nothing when that is not a terminal."""
    if not sys.stderr.isatty():
        return lambda text, done, total: None
    shown = ""

    def draw(text: str, done: int, total: int) -> None:
        nonlocal shown
        part = min(1.0, done / total) if total else 0.0
        bar = f" [{'#' * int(part * 30):30}] {part:4.0%}" if total else " ..."
        line = f"\r{text:32}{bar:40}"
        if line != shown:
            sys.stderr.write(line + ("\n" if total and done >= total else ""))
            sys.stderr.flush()
            shown = line

    return draw
