"""Groups batches into launches: several steps at once, where the host is slower than its device.

It also keeps how far training has come (:class:`Progress`), adds up losses and measures, and finds
the layer that made the first value that is not finite.
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
    copies = {state.name: states[state.name].copy() for state in graph.states}
    for name, array in copies.items():
        if _count(array):
            return f"{name} has {_told(array)}, since an earlier step"
    sources: list[str] = []

    def observe(node: Node, results: tuple[np.ndarray, ...]) -> None:
        for array in results:
            if not sources and _count(array):
                sources.append(f"layer {node.source!r} ({node.op.name}) made {_told(array)}")

    evaluate(graph, [np.asarray(array) for array in arrays], dtype, observe, copies)
    return sources[0] if sources else "computed in NumPy it is finite"


def _count(array: np.ndarray) -> int:
    """How many values of an array are NaN or infinite."""
    return int((~np.isfinite(array)).sum()) if array.dtype.kind == "f" else 0


def _told(array: np.ndarray) -> str:
    """Says how many values of an array are not finite."""
    return f"{_count(array)} of {array.size} values that are NaN or infinite"


@dataclass
class Progress:
    """How far training has come, but for the states of the graph; checkpoints save it."""

    #: Updates of the parameters, and batches, since training began.
    steps: int = 0
    batches: int = 0
    #: Complete epochs; of the epoch that runs: its batches, its samples, and sums over these.
    epoch: int = 0
    position: int = 0
    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def count(self, found: Mapping[str, Any], samples: int) -> None:
        """Counts a batch of the epoch, and adds its losses and measures to the sums."""
        self.position, self.samples = self.position + 1, self.samples + samples
        add(self.sums, found, samples, self.samples - samples)

    def means(self) -> dict[str, float]:
        """The means over the samples of the epoch so far, by name."""
        return means(self.sums, self.samples)

    def before(self, batches: int) -> Progress:
        """A copy in which ``steps`` and ``batches`` are as they were so many batches ago.

        A launch counts both at once for all of its batches; :meth:`count` counts batch by batch.
        """
        at = (self.epoch, self.position, self.samples, dict(self.sums))
        return Progress(self.steps - batches, self.batches - batches, *at)


def means(sums: Mapping[str, float], samples: int) -> dict[str, float]:
    """The sums that :func:`add` made, divided by their counts; NaN where nothing counts."""
    return {
        name: (total / count if (count := sums.get(HIDDEN + name, samples)) else nan)
        for name, total in sums.items()
        if not name.startswith(HIDDEN)
    }


def add(sums: dict[str, float], found: Mapping[str, Any], count: int, before: int) -> None:
    """Adds the means of a batch to sums over batches, each times what it counts.

    A mean counts by the batch's samples, unless ``found`` has a hidden count for it, under
    :data:`HIDDEN` and its name.  A mean that counts nothing adds nothing.

    Args:
        sums: by name, changed in place.
        found: the results of a program, by name.
        count: samples of the batch.
        before: samples of the batches before.
    """
    for name, value in found.items():
        if name.startswith(HIDDEN):
            continue
        hidden = HIDDEN + name
        weight = float(found.get(hidden, count))
        if hidden in found or hidden in sums:
            sums[hidden] = sums.get(hidden, float(before)) + weight
        sums[name] = sums.get(name, 0.0) + (float(value) * weight if weight else 0.0)


@dataclass(frozen=True)
class Batch:
    """A batch of an epoch, as :meth:`Trainer.fit` trains on it.

    Attributes:
        x: the inputs as the loader gave them.
        target: the targets as the loader gave them.
        inputs: the arrays in ``x``, one for each input of the network.
        shapes: of ``inputs``.
        place: the state of the loader after this batch, from which it can go on.
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
    """Groups batches, in order: ``steps`` batches of equal shapes make a launch.

    Batches that do not fill a launch come one by one.
    """
    waiting: list[Batch] = []
    for batch in batches:
        if waiting and waiting[0].shapes != batch.shapes:
            yield from ([single] for single in waiting)
            waiting = []
        waiting.append(batch)
        if len(waiting) == steps:
            yield waiting
            waiting = []
    yield from ([single] for single in waiting)


@cache
def _repeats(kind: type) -> bool:
    """Whether programs of a class take several steps in one launch.

    The answer is cached, since a check against a protocol takes longer than a launch.
    """
    return issubclass(kind, RepeatingProgram)


def repeat(program: Executable, count: int) -> None:
    """Prepares a program for launches of ``count`` steps, if its device has such launches."""
    runtime_program: Any = program.program
    if _repeats(runtime_program.__class__):
        runtime_program.repeat(count)


def public(found: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a program that are for users."""
    return {name: value for name, value in found.items() if not name.startswith(HIDDEN)}


#: What callbacks see after a step: how far training has come, and the step's loss and measures.
Told = tuple[Progress, Mapping[str, Any]]


def take(
    trainer: Any, batches: Sequence[Batch], stop_on_nan: bool
) -> tuple[list[Told], TrainingError | None]:
    """Trains on batches of one size in one launch.

    Returns what callbacks are told of each step, and an error.  Under ``stop_on_nan`` the first
    step with a loss that is not finite ends the list, and the error is about it.
    """
    progress, remaining = trainer.progress, len(batches)
    if remaining == 1:
        trainer.step(batches[0].x, batches[0].target)
        results: Sequence[Mapping[str, Any]] = [trainer.found]
    else:
        results = _launched(trainer, batches)
    told: list[Told] = []
    for batch, result in zip(batches, results, strict=True):
        remaining -= 1
        if stop_on_nan and not isfinite(float(result["loss"])):
            return told, TrainingError(_not_finite(trainer, batch, result, remaining))
        progress.count(result, batch.samples)
        if trainer.measured.metrics:
            targets = trainer.feeding.targets(batch.target, batch.shapes)[0]
            trainer.measured.see(result, targets, batch.shapes)
        trainer.place = batch.place
        told.append((progress.before(remaining) if remaining else progress, public(result)))
    return told, None


def _launched(trainer: Any, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """Losses and measures, on the host, of steps that are taken in one launch.

    On the CPU and the reference a step is one native call, and they follow each other: there is no
    launch whose cost they could share.
    """
    progress = trainer.progress
    typed_targets = [trainer.feeding.targets(batch.target, batch.shapes) for batch in batches]
    types = typed_targets[0][1]
    if any(other != types for _, other in typed_targets):
        results = []
        for batch in batches:
            trainer.step(batch.x, batch.target)
            results.append(trainer.found)
        return results
    program = trainer._program("step", batches[0].shapes, types)[1]
    calls = [
        [*batch.inputs, *targets, *trainer.numbers(progress.steps + i)]
        for i, (batch, (targets, _)) in enumerate(zip(batches, typed_targets, strict=True))
    ]
    if _repeats(program.program.__class__):
        columns = program.packed(cast(RepeatingProgram, program.program).launch(calls))
        results = [{name: column[i] for name, column in columns.items()} for i in range(len(calls))]
    else:
        results = [{n: on_host(a) for n, a in program(*call).items()} for call in calls]
    progress.batches, progress.steps = progress.batches + len(calls), progress.steps + len(calls)
    return results


def _not_finite(trainer: Any, batch: Batch, last: Mapping[str, Any], remaining: int) -> str:
    """The message about a loss that is not finite: the batch, and the source of the value."""
    targets, types = trainer.feeding.targets(batch.target, batch.shapes)
    graph = trainer.objective.applied(trainer.network, list(batch.shapes), "train", forms=types)
    arrays = list(map(on_host, (*batch.inputs, *targets)))
    dtype = "float64" if trainer.step_program.precision == "float64" else None
    source = first_not_finite(graph, arrays, trainer.store, dtype)
    at = trainer.progress
    later = f"; the next {remaining}, of the same launch, were trained on" if remaining else ""
    return (
        f"batch {at.position + 1} of epoch {at.epoch + 1}: the loss is {float(last['loss'])}, and "
        f"nothing was changed by it{later}; {source}"
    )
