"""Benchmarking: interleaved rounds, detection of other load, medians with intervals, result files.

Contestants run in turn, round by round, so that other load on the machine affects all of them; that
load is measured, and disturbed measurements are repeated.  Medians have confidence intervals that
assume no distribution of times.  Figures are written with six digits each, compact, to files that
are never half written.  GPU work is timed by ``minidnn.cudnn.graph.timing`` (kernels, on CuPy's
streams) and by ``minidnn.bench.gpu_timing`` (whole networks against PyTorch's).
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import comb, exp, inf, lgamma, log
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def orders(contestants: Sequence[T], first: int = 0) -> Iterator[list[T]]:
    """Yields the order of contestants for each round from number ``first`` on, without end: each
    order is the one before, rotated by one."""
    for number in count(first):
        turn = number % len(contestants)
        yield [*contestants[turn:], *contestants[:turn]]


def interleaved(takes: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Calls each contestant once in every round; returns the results of each, by name."""
    results: dict[str, list[T]] = {name: [] for name in takes}
    for _, order in zip(range(rounds), orders(list(takes)), strict=False):
        for name in order:
            results[name].append(takes[name]())
    return results


@dataclass(frozen=True)
class Estimate:
    """A median, and an interval that holds the true one with a given confidence or more."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def median(samples: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The median of independent samples, with an interval between two of them.

    The number of samples below the true median is binomial with one half, whatever their
    distribution, so the k-th smallest and k-th largest enclose it with a known probability: 7
    samples reach 98.4 % by their extremes.  With fewer than 6 samples even the extremes do not
    reach 95 %; they are given nevertheless.
    """
    ordered = sorted(samples)
    if not ordered:
        raise ValueError("samples is empty: an estimate needs at least one")
    count = len(ordered)
    outside, cut = 0.0, 0
    while 2 * (outside + _chance(count, cut)) <= 1 - confidence:
        outside += _chance(count, cut)
        cut += 1
    cut = max(0, cut - 1)
    return Estimate(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def _chance(count: int, below: int) -> float:
    """The probability that exactly ``below`` of ``count`` samples are below the true median."""
    if count <= 1000:
        return comb(count, below) / 2**count
    ways = lgamma(count + 1) - lgamma(below + 1) - lgamma(count - below + 1)
    return exp(ways - count * log(2))  # the integers would have thousands of digits


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The median of ``above[i] / below[i]``, whose samples are from the same round."""
    return median([a / b for a, b in zip(above, below, strict=True)])


def compared(times: Mapping[str, Sequence[float]], to: str) -> dict[str, Any]:
    """Summarizes engines' times, given round by round: the median of each, and its ratio to that of
    ``to`` for all others, with intervals, as an :class:`Estimate` has them."""
    others = {name: samples for name, samples in times.items() if name != to}
    return {
        "rounds": max(map(len, times.values())),
        "seconds": {name: vars(median(samples)) for name, samples in times.items()},
        "ratio": {name: vars(ratio(samples, times[to])) for name, samples in others.items()},
    }


PROC = Path("/proc")

DISTURBED = 0.1
"""The share of the cores' time taken by other processes from which a measurement is repeated."""

QUIET_SHARE = 0.93
"""The share of their cores' time below which threads count as disturbed by other processes."""


class LoadWatch:
    """Measures other processes' load on the cores that this process may use, from now on.

    Where cores are assigned (``taskset``, containers), load on other cores does not count.

    Args:
        pid: the process that is measured, whose own load does not count.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = time.perf_counter()
        self._busy, self._own = _busy_ticks(), _ticks_of(pid)

    def others(self) -> float:
        """The share of these cores' time since this was made that went to other processes; 0 where
        the system does not tell.  The system counts in hundredths of a second."""
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
    seconds: float = inf,
) -> tuple[float, T]:
    """Measures while other processes leave the cores alone.

    Calls ``take`` again after ``pause`` seconds as long as it was disturbed, ``tries`` times at
    most, and not after ``seconds``; then the least disturbed call counts.  ``before`` is called
    before each.  ``pid``: the process that is measured.

    Returns the share of the cores' time that other processes had, and the result of ``take``.
    """
    results: list[tuple[float, T]] = []
    end = time.monotonic() + seconds
    while len(results) < tries and (not results or time.monotonic() < end):
        if results:
            time.sleep(pause)
        before()
        watch = LoadWatch(pid)
        result = take()
        results.append((watch.others(), result))
        if results[-1][0] < DISTURBED:
            return results[-1]
    return min(results, key=lambda one: one[0])


def timed(
    action: Callable[[], object], threads: int, share: float = QUIET_SHARE
) -> tuple[float, bool]:
    """The seconds of a call on ``threads`` threads of this process, and whether these had more
    than ``share`` of their cores' time."""
    start, used = time.perf_counter(), time.process_time()
    action()
    seconds = time.perf_counter() - start
    return seconds, time.process_time() - used > share * threads * seconds


def _busy_ticks() -> int:
    """Busy clock ticks of these cores since boot: user, nice, system, interrupts, stolen time."""
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
    """Clock ticks of a process with all of its threads, in user and kernel mode."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


DIGITS = 6
WIDTH = 400
"""The width of a line in a file, in characters."""


def write_figures(path: Path, data: Any) -> None:
    """Writes figures to a file of JSON, or of lines of JSON (``.jsonl``), in one step."""
    text = "\n".join(map(line_of, data)) if path.suffix == ".jsonl" else _spread(rounded(data))
    work = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        work.write_text(text + "\n", encoding="utf-8")
        os.replace(work, path)
    finally:
        work.unlink(missing_ok=True)


def line_of(figures: Any) -> str:
    """Formats figures in one line of JSON."""
    return json.dumps(rounded(figures), separators=(",", ":"), allow_nan=False)


def rounded(figures: Any) -> Any:
    """The figures with six significant digits, more than the precision of any timing."""
    if isinstance(figures, float):
        return float(f"{figures:.{DIGITS}g}")
    if isinstance(figures, Mapping):
        return {key: rounded(value) for key, value in figures.items()}
    return [rounded(each) for each in figures] if isinstance(figures, list | tuple) else figures


def _spread(figures: Any) -> str:
    """JSON in which a list or object that is longer than a line has a line for each element."""
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    if len(text) <= WIDTH or not isinstance(figures, dict | list):
        return text
    if isinstance(figures, list):
        return "[\n" + ",\n".join(map(_spread, figures)) + "\n]"
    parts = (f"{json.dumps(key)}: {_spread(value)}" for key, value in figures.items())
    return "{\n" + ",\n".join(parts) + "\n}"
