"""One case: engines started, compared, run in turn, and written down."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from minidnn.bench.alternate import alternate
from minidnn.bench.engines import OWN, Kind
from minidnn.bench.networks import Prepared
from minidnn.bench.process import EngineError, EngineProcess
from minidnn.bench.results import Record
from minidnn.measure.statistics import Estimate, median, ratio

Step = Callable[[str, int, int], None]
"""Told what is under way, and how many of how many steps of the case are done."""


@dataclass(frozen=True)
class Effort:
    """Rounds in which every engine has a burst, about how many seconds a burst lasts, and the time
    (of ``time.monotonic``) after which no further round begins."""

    rounds: int = 9
    burst: float = 0.3
    end: float = math.inf


@dataclass(frozen=True)
class Earlier:
    """Rounds that were run before, in all of which the same engines took part.

    Attributes:
        begun: when the first of them was.
        rounds: seconds by engine.
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
    """A record for each kind, of which the first is minidnn's own: others are compared with it.

    ``earlier``: rounds of all these kinds, which count too.

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
    """The largest difference as a part of the largest expected value; None if not finite."""
    with np.errstate(all="ignore"):
        difference = np.abs(output.astype(np.float64) - expected).max() / np.abs(expected).max()
    return float(difference) if np.isfinite(difference) else None


def times_of(seconds: Sequence[float], own: Sequence[float], name: str) -> Record:
    """What a record says of an engine's rounds; of another than minidnn, beside minidnn's."""
    record: dict[str, Any] = {"seconds": _plain(median(seconds)), "rounds": list(seconds)}
    if name != OWN:
        record["ratio"] = _plain(ratio(seconds, own))
    return record


def _plain(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def now() -> str:
    """The time, as records have it."""
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
