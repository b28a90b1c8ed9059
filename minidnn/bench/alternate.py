"""Runs engines in turn, so that whatever else the machine does strikes all of them."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping

from minidnn.bench.process import EngineProcess
from minidnn.measure import load
from minidnn.measure.interleave import orders

log = logging.getLogger("minidnn.bench")

Progress = Callable[[int, str], None]
"""Told before each burst: the round, and the engine's name."""

LEAST_RUNS = 3

TRIES = 7
PAUSE_SECONDS = 0.25
MOST_SECONDS = 3.0
"""A burst that others disturb is taken again: how many are taken, how long after one another, and
for how long at most."""


def alternate(
    engines: Mapping[str, EngineProcess],
    rounds: int = 7,
    burst_seconds: float = 0.3,
    rest_seconds: float = 0.05,
    progress: Progress = lambda number, name: None,
    least_runs: int = LEAST_RUNS,
    end: float = math.inf,
    first: int = 0,
) -> dict[str, list[float]]:
    """Seconds of a run of each engine in each of ``rounds`` rounds, from number ``first`` on.

    A round gives every engine one burst of runs, about ``burst_seconds`` long and at least
    ``least_runs`` runs (one, where that is longer by itself), of which the median counts; one run
    before is not counted.  Before each burst lies a rest, in which threads of the engine before it
    stop spinning.  A burst that other processes disturb is taken again; if that does not help, it
    is logged.  The order of a round is that of the round before, turned by one.  No round but the
    first begins if it would probably end after ``end`` (of ``time.monotonic``).
    """
    names = list(engines)
    found: dict[str, list[float]] = {name: [] for name in names}
    counts = {name: _runs_in(engine, burst_seconds, least_runs) for name, engine in engines.items()}
    begin = time.monotonic()
    for done, order in zip(range(rounds), orders(names, first), strict=False):
        now = time.monotonic()
        if done and now + (now - begin) / done > end:
            break
        for name in order:
            progress(first + done, name)
            time.sleep(rest_seconds)
            found[name].append(_burst(engines[name], counts[name]))
    return found


def _burst(engine: EngineProcess, count: int) -> float:
    """The median of ``count`` runs."""
    share, seconds = load.undisturbed(
        lambda: statistics.median(engine.run(count + 1)[1:]),
        engine.pid,
        TRIES,
        pause=PAUSE_SECONDS,
        seconds=MOST_SECONDS,
    )
    if share >= load.DISTURBED:
        log.warning("engine %r: other processes had %.0f %% of the cores", engine.name, 100 * share)
    return seconds


def _runs_in(engine: EngineProcess, burst_seconds: float, least: int) -> int:
    """How many runs fill a burst, once the engine has warmed up."""
    if engine.run(1)[0] > burst_seconds:
        return 1
    engine.run(least)
    return max(least, round(burst_seconds / min(engine.run(least))))
