"""Tunes a step: searches the block and the parameters with which it is fastest on this machine.

Results are kept in the cache folder, for the machine, the step's text, and the search.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..cache import CacheStore, digest
from ..errors import UnsupportedError
from .isolated_jobs import Failure
from .operands import OperandFolder
from .step import Choices, Ladder, Point, points_of
from .studies import LabDevice

METHODS = ("guided", "random", "exhaustive")
_VERSION = 1
_BYTES = 1 << 20
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Multiples of a step's own parameters that are tried by default."""

Runner = Callable[[Sequence[Any]], Iterable[Any]]
"""Measures jobs: returns the measured part of a cell, or a failure, for each."""


@dataclass(frozen=True)
class StepTuning:
    """What tuning a step found.

    Attributes:
        step: its name.
        tried: cells of what was measured, in their order: block, parameters, predicted and measured
            seconds, or why there is no time.
        refused: how many points cannot be launched at all.
        remembered: whether this was measured earlier.

    >>> from minidnn import lab
    >>> cell = {"block": [8, 8], "parameters": {}, "predicted_seconds": 1.0}
    >>> lab.StepTuning("tiled", ({**cell, "measured_seconds": 2.0},), 0, False).loss
    1.0
    """

    step: str
    tried: tuple[Mapping[str, Any], ...]
    refused: int
    remembered: bool

    @property
    def best(self) -> Mapping[str, Any]:
        """The fastest cell; UnsupportedError if nothing that was tried is right."""
        timed = [cell for cell in self.tried if "measured_seconds" in cell]
        if not timed:
            reasons = "; ".join({str(cell.get("failed")) for cell in self.tried}) or "nothing fits"
            raise UnsupportedError(f"step {self.step}: nothing that was tried is right: {reasons}")
        return min(timed, key=lambda cell: float(cell["measured_seconds"]))

    @property
    def model_choice(self) -> Mapping[str, Any]:
        """The cell that the model would have chosen: it is always tried."""
        return min(self.tried, key=lambda cell: float(cell["predicted_seconds"]))

    @property
    def loss(self) -> float | None:
        """How many times as long as the best the model's choice takes; None if it is wrong."""
        seconds = self.model_choice.get("measured_seconds")
        return None if seconds is None else float(seconds) / float(self.best["measured_seconds"])


def default_choices(step: Any) -> dict[str, list[int]]:
    """For each parameter of a step, values from a quarter to four times its default."""
    return {
        name: sorted({max(1, int(number * factor)) for factor in _FACTORS})
        for name, number in step.parameters.items()
    }


def tune_step(
    ladder: Ladder,
    step: Any,
    blocks: Sequence[Any],
    shape: Any,
    choices: Choices | None,
    device: LabDevice,
    run: Runner,
    *,
    method: str = "guided",
    most: int = 16,
    seed: int = 0,
) -> StepTuning:
    """Measures at most ``most`` points of a step, or all of them if the method is "exhaustive".

    "guided" spends half of the measurements on the points that the model predicts to be fastest,
    and the others on the neighbours of the fastest so far.  "random" draws points, with ``seed``.
    A tuning without a correct result is not cached.
    """
    if method not in METHODS:
        raise UnsupportedError(f"method={method!r}; valid are {', '.join(METHODS)}")
    if most < 2:
        raise UnsupportedError(f"most={most}; valid are numbers from 2 on")
    machine = device.machine()
    points = points_of([step], blocks, choices or default_choices(step))
    plan = [(p.block, p.parameters) for p in points]
    parts = (step.text, asdict(shape), asdict(machine), plan, method, most, seed)
    key = digest("lab tuning", _VERSION, ladder.name, json.dumps(parts))
    store = CacheStore("lab_tuning", ".json", _BYTES)
    if (cached := store.read(key)) is not None:
        found = json.loads(cached)
        return StepTuning(step.name, tuple(found["tried"]), found["refused"], True)
    predicted = device.predict(points, shape, machine)
    fitting = {
        at: float(one.seconds) for at, one in enumerate(predicted) if not isinstance(one, str)
    }
    tried: dict[int, dict[str, Any]] = {}
    with OperandFolder(ladder) as folder:
        operands = folder.of(step.operands(shape), shape, step.float16_operands)
        for batch in _batches(points, fitting, tried, method, most, seed):
            jobs = [device.job(points[at], shape, machine, operands) for at in batch]
            for at, measured in zip(batch, run(jobs), strict=True):
                cell = {
                    "block": list(points[at].block),
                    "parameters": points[at].parameters,
                    "predicted_seconds": fitting[at],
                }
                tried[at] = cell | (
                    {"failed": measured.text} if isinstance(measured, Failure) else measured
                )
    tuning = StepTuning(step.name, tuple(tried.values()), len(points) - len(fitting), False)
    if any("measured_seconds" in cell for cell in tuning.tried):
        document = {"tried": list(tuning.tried), "refused": tuning.refused}
        store.put(key, json.dumps(document).encode(), label=step.name)
    return tuning


def _batches(
    points: Sequence[Point],
    fitting: Mapping[int, float],
    tried: Mapping[int, Mapping[str, Any]],
    method: str,
    most: int,
    seed: int,
) -> Iterator[list[int]]:
    """Yields the points to be measured, batch by batch; ``tried`` grows between batches."""
    order = sorted(fitting, key=lambda at: fitting[at])
    if not order:
        return
    if method == "exhaustive":
        yield order
    elif method == "random":
        others = random.Random(seed).sample(order[1:], min(most, len(order)) - 1)
        yield [order[0], *others]
    else:
        yield order[: most // 2]
        timed = {at: c["measured_seconds"] for at, c in tried.items() if "measured_seconds" in c}
        best = min(timed, key=lambda at: float(timed[at]), default=order[0])
        untried = [at for at in order if at not in tried]
        untried.sort(key=lambda at: _differences(points[at], points[best]))
        yield untried[: most - most // 2]


def _differences(one: Point, other: Point) -> int:
    count = sum(one.parameters[name] != number for name, number in other.parameters.items())
    return count + (one.block != other.block)
