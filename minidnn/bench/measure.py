"""Measures a case on the CPU: starts engines, compares outputs, times interleaved rounds.

Engines take turns in short bursts, so that any other load of the machine affects all of them.  The
result is a record for each engine, as :mod:`.results` keeps it.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from minidnn.bench.engines import OWN, Kind
from minidnn.bench.networks import Prepared
from minidnn.bench.process import EngineError, EngineProcess
from minidnn.bench.results import Record
from minidnn.measure import DISTURBED, median, orders, ratio, undisturbed

log = logging.getLogger("minidnn.bench")

Progress = Callable[[int, str], None]
"""Called before each burst with the round's number and the engine's name."""

LEAST_RUNS = 3

TRIES = 7
PAUSE_SECONDS = 0.25
MOST_SECONDS = 3.0
"""A burst that other processes disturb is repeated: the most bursts, the pause between them, and
the seconds after which none is begun."""


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

    In a round, every engine has one burst of runs, which lasts about ``burst_seconds`` and has at
    least ``least_runs`` runs (one, if a run alone lasts longer).  The median of the burst counts,
    without its first run.  A rest precedes each burst, so that the threads of the previous engine
    stop spinning.  A burst that other processes disturb is repeated; if that does not help, it is
    logged.  Each round rotates the order of the previous one by one.  After the first, no round
    begins that would probably end after ``end`` (of ``time.monotonic``).
    """
    names = list(engines)
    medians: dict[str, list[float]] = {name: [] for name in names}
    counts = {name: _runs_in(engine, burst_seconds, least_runs) for name, engine in engines.items()}
    begin = time.monotonic()
    for done, order in zip(range(rounds), orders(names, first), strict=False):
        now = time.monotonic()
        if done and now + (now - begin) / done > end:
            break
        for name in order:
            progress(first + done, name)
            time.sleep(rest_seconds)
            medians[name].append(_burst(engines[name], counts[name]))
    return medians


def _burst(engine: EngineProcess, count: int) -> float:
    """The median of ``count`` runs, in seconds."""
    share, seconds = undisturbed(
        lambda: statistics.median(engine.run(count + 1)[1:]),
        engine.pid,
        TRIES,
        pause=PAUSE_SECONDS,
        seconds=MOST_SECONDS,
    )
    if share >= DISTURBED:
        log.warning("engine %r: other processes had %.0f %% of the cores", engine.name, 100 * share)
    return seconds


def _runs_in(engine: EngineProcess, burst_seconds: float, least: int) -> int:
    """How many runs fill a burst, once the engine has warmed up."""
    if engine.run(1)[0] > burst_seconds:
        return 1
    engine.run(least)
    return max(least, round(burst_seconds / min(engine.run(least))))


Step = Callable[[str, int, int], None]
"""Called with what is being done, and how many of how many steps of the case are done."""


@dataclass(frozen=True)
class Effort:
    """How much is measured of a case.

    Attributes:
        rounds: in each of which every engine has a burst.
        burst: seconds that a burst lasts, approximately.
        end: the time (of ``time.monotonic``) after which no further round begins.
    """

    rounds: int = 9
    burst: float = 0.3
    end: float = math.inf


@dataclass(frozen=True)
class Earlier:
    """Rounds of an earlier run, in all of which the same engines took part.

    Attributes:
        begun: when the first of them began, as :func:`now` writes it.
        rounds: seconds of each round, by engine.
    """

    begun: str
    rounds: Mapping[str, Sequence[float]]


def measure(
    prepared: Prepared,
    kinds: Sequence[Kind],
    effort: Effort,
    step: Step,
    earlier: Earlier | None = None,
) -> dict[str, Record]:
    """Measures a case; returns a record for each engine.  The first is minidnn's, to which the
    times of the others are related.

    ``earlier``: rounds of an earlier run of the same engines, which count too.

    An engine that fails has a record with its error, and does not stop the others.

    Raises:
        EngineError: minidnn itself failed.
    """
    total = len(kinds) * (effort.rounds + 1)
    done = len(earlier.rounds[OWN]) if earlier else 0
    begun = earlier.begun if earlier else now()
    records: dict[str, Record] = {}
    engines: dict[str, EngineProcess] = {}
    expected = np.load(prepared.expected)

    def give_up(error: EngineError) -> None:
        if error.engine in ("", OWN):
            raise error
        records[error.engine] = {"error": str(error), "measured": now()}
        engines.pop(error.engine, None)

    with ExitStack() as stack:
        for i, kind in enumerate(kinds):
            step(f"starting {kind.name}", i, total)
            try:
                engine = stack.enter_context(kind.start(prepared))
                records[kind.name] = _about(engine, expected)
                engines[kind.name] = engine
            except EngineError as error:
                give_up(error)
        while engines:
            try:
                times = _alternate(engines, effort, step, len(kinds), total, done)
                break
            except EngineError as error:
                give_up(error)
        if earlier:
            times = {name: [*earlier.rounds[name], *found] for name, found in times.items()}
        for name, seconds in times.items():
            records[name] |= {"begun": begun, **times_of(seconds, times[OWN], name)}
            records[name]["memory_bytes"] = engines[name].memory()
    return records


def _alternate(
    engines: dict[str, EngineProcess],
    effort: Effort,
    step: Step,
    started: int,
    total: int,
    first: int,
) -> dict[str, list[float]]:
    order = list(engines)

    def progress(number: int, name: str) -> None:
        step(f"running {name}", started + number * len(engines) + order.index(name), total)

    return alternate(
        engines,
        effort.rounds - first,
        effort.burst,
        progress=progress,
        end=effort.end,
        first=first,
    )


def _about(engine: EngineProcess, expected: np.ndarray) -> Record:
    first = engine.run(1)[0]
    (output,) = engine.outputs()
    if output.shape != expected.shape:
        raise EngineError(
            f"engine {engine.name!r}: its output has shape {output.shape}, valid is "
            f"{expected.shape}",
            engine.name,
        )
    return {
        "deviation": deviation(output, expected),
        "compile_seconds": engine.seconds + first,
        **engine.about,
        "measured": now(),
    }


def deviation(output: np.ndarray, expected: np.ndarray) -> float | None:
    """The largest difference, relative to the largest expected value; None if it is not finite."""
    with np.errstate(all="ignore"):
        difference = np.abs(output.astype(np.float64) - expected).max() / np.abs(expected).max()
    return float(difference) if np.isfinite(difference) else None


def times_of(seconds: Sequence[float], own: Sequence[float], name: str) -> Record:
    """The entries of a record for an engine's rounds; for a peer, with the ratio to minidnn's."""
    record: dict[str, Any] = {"seconds": asdict(median(seconds)), "rounds": list(seconds)}
    if name != OWN:
        record["ratio"] = asdict(ratio(seconds, own))
    return record


def now() -> str:
    """The present time in UTC, as records have it."""
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
