"""What else a machine was doing while something was measured, as Linux tells it."""

from __future__ import annotations

import os
import time
from pathlib import Path

PROC = Path("/proc")


class Watch:
    """Looks at a process, and at the cores that this one may use, from its making on.

    Where cores are handed out (``taskset``, containers), what others do on theirs does not count.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = time.perf_counter()
        self._busy, self._own = _busy_ticks(), _ticks_of(pid)

    def others(self) -> float:
        """The share of these cores' time since then that went to other processes; 0 where the
        system does not tell.  The system counts in hundredths of a second."""
        ticks = _busy_ticks() - self._busy - (_ticks_of(self._pid) - self._own)
        seconds = ticks / os.sysconf("SC_CLK_TCK")
        passed = time.perf_counter() - self._start
        return max(0.0, seconds / (passed * len(os.sched_getaffinity(0))))


def _busy_ticks() -> int:
    """Of these cores since the start: user, nice, system, interrupts, stolen by the host."""
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    try:
        lines = (PROC / "stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    total = 0
    for name, *fields in map(str.split, lines):
        if name in names:
            user, nice, system, _idle, _wait, interrupt, soft, stolen = map(int, fields[:8])
            total += user + nice + system + interrupt + soft + stolen
    return total


def _ticks_of(pid: int) -> int:
    """Of a process with all of its threads, in user and kernel."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
