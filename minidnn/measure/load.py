"""What else a machine was doing while something was measured, as Linux tells it, and measuring
again because of that."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

PROC = Path("/proc")

DISTURBED = 0.1
"""What was measured while other processes had that share of the cores is measured again."""

QUIET_SHARE = 0.93
"""Threads that got less of their cores than this were disturbed by other processes."""

T = TypeVar("T")


class LoadWatch:
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


def undisturbed(
    take: Callable[[], T],
    pid: int,
    tries: int,
    before: Callable[[], object] = lambda: None,
    pause: float = 0.0,
    seconds: float = math.inf,
) -> tuple[float, T]:
    """What ``take`` gives while others let the cores alone, and the share that they had.

    It is called again after ``pause`` seconds while they did not, ``tries`` times at most and none
    after ``seconds``; then the least disturbed one counts.  ``before`` is called before each.
    ``pid``: the process that is measured.
    """
    tried: list[tuple[float, T]] = []
    end = time.monotonic() + seconds
    while len(tried) < tries and (not tried or time.monotonic() < end):
        if tried:
            time.sleep(pause)
        before()
        watch = LoadWatch(pid)
        found = take()
        tried.append((watch.others(), found))
        if tried[-1][0] < DISTURBED:
            return tried[-1]
    return min(tried, key=lambda one: one[0])


def timed(
    action: Callable[[], object], threads: int, share: float = QUIET_SHARE
) -> tuple[float, bool]:
    """Seconds of a call on so many threads of this process, and whether they had at least this
    share of their cores all the time."""
    start, used = time.perf_counter(), time.process_time()
    action()
    seconds = time.perf_counter() - start
    return seconds, time.process_time() - used > share * threads * seconds


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
