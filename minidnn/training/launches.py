"""Batches in launches: several steps at once, where the host is slower than its device.

Where a value is not finite, its first source is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isfinite, nan
from typing import Any, cast

import numpy as np

from minidnn.errors import TrainingError
from minidnn.executable import Executable
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node
from minidnn.runtime.program import RepeatingProgram
from minidnn.training.feeding import on_host
from minidnn.training.objective import HIDDEN


def first_not_finite(
    graph: Graph, arrays: Sequence[Any], states: Mapping[str, np.ndarray], dtype: str | None
) -> str:
    """Names the input, the parameter or the layer with the first value that is NaN or infinite, by
    computing the graph node by node in NumPy."""
    for value, array in zip(graph.inputs, arrays, strict=True):
        if _count(np.asarray(array)):
            return f"{value.name} of the batch has {_told(np.asarray(array))}"
    held = {state.name: states[state.name].copy() for state in graph.states}
    for name, array in held.items():
        if _count(array):
            return f"{name} has {_told(array)}, since an earlier step"
    found: list[str] = []

    def observe(node: Node, results: tuple[np.ndarray, ...]) -> None:
        for array in results:
            if not found and _count(array):
                found.append(f"layer {node.source!r} ({node.op.name}) made {_told(array)}")

    evaluate(graph, [np.asarray(array) for array in arrays], dtype, observe, held)
    return found[0] if found else "computed in NumPy it is finite"


def _count(array: np.ndarray) -> int:
    return int((~np.isfinite(array)).sum()) if array.dtype.kind == "f" else 0


def _told(array: np.ndarray) -> str:
    return f"{_count(array)} of {array.size} values that are NaN or infinite"


@dataclass
class Progress:
    """How far training has come: all of it that is no state of the graph."""

    #: Updates of the parameters, and batches, since the beginning.
    steps: int = 0
    batches: int = 0
    #: Epochs that are complete; batches and samples of the one that is not, and sums over these.
    epoch: int = 0
    position: int = 0
    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def count(self, found: Mapping[str, Any], samples: int) -> None:
        """One batch more of the epoch."""
        self.position, self.samples = self.position + 1, self.samples + samples
        add(self.sums, found, samples, self.samples - samples)

    def means(self) -> dict[str, float]:
        """The means over the samples of the epoch so far, by name."""
        return means(self.sums, self.samples)

    def before(self, batches: int) -> Progress:
        """A copy, as it was so many batches ago but for what :meth:`count` counts."""
        at = (self.epoch, self.position, self.samples, dict(self.sums))
        return Progress(self.steps - batches, self.batches - batches, *at)


def means(sums: Mapping[str, float], samples: int) -> dict[str, float]:
    """What :func:`add` has added, divided by how many samples there were."""
    return {
        name: (total / count if (count := sums.get(HIDDEN + name, samples)) else nan)
        for name, total in sums.items()
        if not name.startswith(HIDDEN)
    }


def add(sums: dict[str, float], found: Mapping[str, Any], count: int, before: int) -> None:
    """Adds the means of so many samples, or of as much as counts of them, to those before.

    Of a mean that nothing counts in, there is nothing to add.
    """
    for name, value in found.items():
        if name.startswith(HIDDEN):
            continue
        hidden = HIDDEN + name
        own = float(found.get(hidden, count))
        if hidden in found or hidden in sums:
            sums[hidden] = sums.get(hidden, float(before)) + own
        sums[name] = sums.get(name, 0.0) + (float(value) * own if own else 0.0)


@dataclass(frozen=True)
class Batch:
    """A batch of an epoch.

    Attributes:
        inputs: what ``x`` has, and their shapes.
        place: where the loader goes on behind it.
    """

    x: Any
    target: Any
    inputs: Sequence[Any]
    shapes: tuple[tuple[int, ...], ...]
    place: Any

    @property
    def samples(self) -> int:
        return self.shapes[0][0]


def launches(batches: Iterable[Batch], steps: int) -> Iterator[Sequence[Batch]]:
    """Batches in order, so many of one size at a time; those that are left over by themselves."""
    waiting: list[Batch] = []
    for batch in batches:
        if waiting and waiting[0].shapes != batch.shapes:
            yield from ([one] for one in waiting)
            waiting = []
        waiting.append(batch)
        if len(waiting) == steps:
            yield waiting
            waiting = []
    yield from ([one] for one in waiting)


@cache
def _repeats(kind: type) -> bool:
    """Whether programs of a class make several runs in a launch.  (To ask a protocol each time
    takes longer than a launch.)"""
    return issubclass(kind, RepeatingProgram)


def repeat(program: Executable, count: int) -> None:
    """Has a program get ready for launches of so many runs."""
    made: Any = program.program
    if _repeats(made.__class__):
        made.repeat(count)


#: What callbacks find after a step: how far training has come, its loss and measures.
Told = tuple[Progress, Mapping[str, Any]]


def take(
    trainer: Any, batches: Sequence[Batch], stop_on_nan: bool
) -> tuple[list[Told], TrainingError | None]:
    """Trains on batches of one size in one launch: what there is to tell of each step up to one
    whose loss is not finite, and its error."""
    at, left = trainer.progress, len(batches)
    if left == 1:
        trainer.step(batches[0].x, batches[0].target)
        found: Sequence[Mapping[str, Any]] = [trainer.found]
    else:
        found = _launched(trainer, batches)
    told: list[Told] = []
    for batch, last in zip(batches, found, strict=True):
        left -= 1
        if stop_on_nan and not isfinite(float(last["loss"])):
            return told, TrainingError(_not_finite(trainer, batch, last, left))
        at.count(last, batch.samples)
        if trainer.measured.states or any(np.ndim(value) for value in last.values()):
            targets = trainer.feeding.targets(batch.target, batch.shapes)[0]
            trainer.measured.see(last, targets, batch.shapes)
        trainer.place = batch.place
        public = {name: value for name, value in last.items() if not name.startswith(HIDDEN)}
        told.append((at.before(left) if left else at, public))
    return told, None


def _launched(trainer: Any, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """Losses and measures, on the host, of steps that are taken in one launch.

    On the CPU and the reference a step is one native call, and they follow each other: there is no
    launch whose cost they could share.
    """
    at = trainer.progress
    given = [trainer.feeding.targets(batch.target, batch.shapes) for batch in batches]
    forms = given[0][1]
    if any(other != forms for _, other in given):
        found = []
        for batch in batches:
            trainer.step(batch.x, batch.target)
            found.append(trainer.found)
        return found
    program = trainer._program("step", batches[0].shapes, forms)[1]
    calls = [
        [*batch.inputs, *targets, *trainer.numbers(at.steps + i)]
        for i, (batch, (targets, _)) in enumerate(zip(batches, given, strict=True))
    ]
    if _repeats(program.program.__class__):
        columns = program.packed(cast(RepeatingProgram, program.program).launch(calls))
        found = [{name: column[i] for name, column in columns.items()} for i in range(len(calls))]
    else:
        found = [{n: on_host(a) for n, a in program(*call).items()} for call in calls]
    at.batches, at.steps = at.batches + len(calls), at.steps + len(calls)
    return found


def _not_finite(trainer: Any, batch: Batch, last: Mapping[str, Any], left: int) -> str:
    targets, forms = trainer.feeding.targets(batch.target, batch.shapes)
    graph = trainer.objective.applied(trainer.network, list(batch.shapes), "train", forms=forms)
    arrays = list(map(on_host, (*batch.inputs, *targets)))
    dtype = "float64" if trainer.step_program.precision == "float64" else None
    place = first_not_finite(graph, arrays, trainer.store, dtype)
    at = trainer.progress
    behind = f"; the next {left}, of the same launch, were trained on" if left else ""
    return (
        f"batch {at.position + 1} of epoch {at.epoch + 1}: the loss is {float(last['loss'])}, and "
        f"nothing was changed by it{behind}; {place}"
    )
