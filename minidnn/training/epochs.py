"""Epochs: what :meth:`Trainer.fit` does with batches and callbacks, and what epochs and evaluations
measure: means over samples, and metrics of all of them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import islice
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.training.callbacks.callback import Callback
from minidnn.training.feeding import Feeding, on_host
from minidnn.training.launches import Batch, launches, means, take
from minidnn.training.metrics.metric import Metric, States, merged
from minidnn.training.objective import HIDDEN, Objective

#: What an epoch measured, by name.
Record = dict[str, Any]


@dataclass(frozen=True)
class FitArguments:
    """What :meth:`Trainer.fit` is given."""

    train: Iterable[Any]
    epochs: int
    validate: Iterable[Any] | None
    callbacks: Sequence[Callback]
    stop_on_nan: bool


def run(trainer: Any, given: FitArguments) -> None:
    """Trains until so many epochs were made in all; see :meth:`Trainer.fit`."""
    trainer.stop, trainer.halt, trainer.interrupted = False, None, False
    trainer.loader, trainer.place = given.train, None
    trainer.place = trainer.loader_is_at()
    try:
        for each in given.callbacks:
            each.begin(trainer, given.epochs)
        trainer.place = trainer.loader_is_at()
        while trainer.progress.epoch < given.epochs and not trainer.stop:
            _epoch(trainer, given)
            _look_at_halt(trainer)
        for each in given.callbacks:
            each.finished(trainer)
    except KeyboardInterrupt:
        if trainer.group is not None and trainer.halt is None:
            raise
        # The loader may have given a batch that was not trained on.
        trainer.interrupted, trainer.loader_state = True, trainer.place
        for each in given.callbacks:
            each.interrupted(trainer)
    finally:
        for each in given.callbacks:
            each.end(trainer)
        trainer.place = None


def _look_at_halt(trainer: Any) -> None:
    if trainer.halt is not None:
        raise KeyboardInterrupt


def _epoch(trainer: Any, given: FitArguments) -> None:
    at, begin = trainer.progress, time.perf_counter()
    seen = 0
    for batches in launches(_batches(trainer, given.train), trainer.steps_per_launch):
        with interrupts_wait():
            told, error = take(trainer, batches, given.stop_on_nan)
        seen += sum(batch.samples for batch in batches)
        try:
            for trainer.progress, trainer.last in told:
                trainer.launched = at
                for each in given.callbacks:
                    each.after_step(trainer)
        finally:
            trainer.progress, trainer.launched = at, None
        if error is not None:
            raise error
        _look_at_halt(trainer)
    if not at.samples:
        raise GraphError("fit: there are no batches; valid is an iterable of at least one")
    seconds = time.perf_counter() - begin
    record: Record = {"epoch": at.epoch + 1, "steps": at.steps}
    record |= totalled(trainer.objective, at.sums, at.samples)
    record |= _measured(trainer)
    record |= {"rate": trainer.optimizer.rate(max(0, at.steps - 1)), "seconds": seconds}
    record["images_per_second"] = seen / seconds
    if given.validate is not None:
        found = trainer.evaluate(_until_halt(trainer, given.validate))
        numbers, tables = _numbers_and_tables(found)
        record |= {f"validation_{name}": number for name, number in numbers.items()}
        trainer.tables |= {f"validation_{name}": table for name, table in tables.items()}
    with interrupts_wait():
        at.epoch, at.position, at.samples, at.sums = at.epoch + 1, 0, 0, {}
        trainer.measured.states = {}
        trainer.history.append(record)
        trainer.place = trainer.loader_is_at()
    for each in given.callbacks:
        each.after_epoch(trainer, record)


def _measured(trainer: Any) -> Record:
    """What metrics of the whole epoch come to; arrays become tables of the trainer."""
    measured = copy(trainer.measured)
    if trainer.group is not None:
        measured.gather(trainer.group)
    numbers, trainer.tables = _numbers_and_tables(measured.results())
    return numbers


def _until_halt(trainer: Any, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in trainer.feeding.pairs("evaluate", batches):
        _look_at_halt(trainer)
        yield batch


def _batches(trainer: Any, train: Iterable[Any]) -> Iterator[Batch]:
    for x, target in _rest(trainer, train):
        inputs, shapes = trainer.feeding.inputs(x)
        yield Batch(x, target, inputs, shapes, trainer.loader_is_at())


def _rest(trainer: Any, train: Iterable[Any]) -> Iterable[tuple[Any, Any]]:
    """What is left of the epoch: all of it, unless a checkpoint was read within one."""
    state, trainer.loader_state = trainer.loader_state, None
    restore: Callable[[Any], None] | None = getattr(train, "restore", None)
    if restore is not None:
        if state is not None:
            restore(state)
        return trainer.feeding.pairs("fit", train)
    return islice(trainer.feeding.pairs("fit", train), trainer.progress.position, None)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Has Ctrl-C wait for the end, so that what belongs together is done or not; a second one does
    not wait.

    Python sees a signal when native code returns: a step's states have changed by then, and what
    counts the steps has not.
    """
    usual = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(usual):
        yield  # there is no such signal here, or none that raises
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            usual(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        usual(came[0], None)


_SEPARATOR = "/"


class SetMeasures:
    """What metrics keep of the batches so far.

    Args:
        objective: whose metrics these are.
        feeding: what batches mean.
    """

    def __init__(self, objective: Objective, feeding: Feeding) -> None:
        self._metrics = [m for m in objective.measures if isinstance(m.function, Metric)]
        self._terms = [term.name for term in objective.terms]
        self._feeding = feeding
        self.states: dict[str, States] = {}

    def see(
        self,
        found: Mapping[str, Any],
        targets: Sequence[Any],
        shapes: tuple[tuple[int, ...], ...],
    ) -> None:
        """Takes in a batch: what the program gave, and its targets."""
        for measure in self._metrics:
            metric: Any = measure.function
            seen: list[np.ndarray] = []
            while (name := f"{HIDDEN}{measure.name}.{len(seen)}") in found:
                seen.append(on_host(found[name]))
            i = self._terms.index(measure.term) if measure.term in self._terms else 0
            shape = self._feeding.output_shape(measure.term, shapes)
            new = metric.taken(seen, on_host(targets[i]), shape)
            self.states[measure.name] = merged(metric, self.states.get(measure.name), new)

    def results(self) -> dict[str, Any]:
        """What the metrics come to, by name: numbers and arrays."""
        found = {}
        for measure in self._metrics:
            if measure.name in self.states:
                metric: Any = measure.function
                found[measure.name] = metric.result(self.states[measure.name])
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """What is kept, by names for a file."""
        return {
            f"{name}{_SEPARATOR}{key}": np.asarray(array)
            for name, states in self.states.items()
            for key, array in states.items()
        }

    def take(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets what :meth:`arrays` gave; what is of no metric of these is left out."""
        found: dict[str, dict[str, np.ndarray]] = {}
        known = {measure.name for measure in self._metrics}
        for name, array in arrays.items():
            metric, _, key = name.rpartition(_SEPARATOR)
            if metric in known:
                found.setdefault(metric, {})[key] = np.array(array)
        self.states = dict(found)

    def gather(self, group: Any) -> None:
        """Joins what all ranks keep, of which each keeps all then."""
        found = {}
        for measure in self._metrics:
            metric: Any = measure.function
            found[measure.name] = {
                key: (_summed if metric.adds else _joined)(group, array)
                for key, array in sorted(self.states.get(measure.name, {}).items())
            }
        self.states = {name: states for name, states in found.items() if states}


def over_ranks(
    group: Any, sums: Mapping[str, float], samples: int, names: Iterable[str]
) -> tuple[dict[str, float], int]:
    """The sums of all ranks by these names, and the samples of all.

    What counts is known of the ranks that have it, of others it is their samples.
    """
    every = [*names]
    hidden = [HIDDEN + name for name in every]
    own = [*(sums.get(n, 0.0) for n in every), *(sums.get(n, float(samples)) for n in hidden)]
    there = [float(name in sums) for name in hidden]
    found = group.sum_of([*own, *there, samples])
    many = len(every)
    means = dict(zip(every, found[:many], strict=True))
    counts = zip(hidden, found[many : 2 * many], found[2 * many : -1], strict=True)
    return means | {name: count for name, count, is_there in counts if is_there}, int(found[-1])


def _summed(group: Any, array: np.ndarray) -> np.ndarray:
    found = np.array(group.sum_of(np.asarray(array, np.float64).reshape(-1).tolist()))
    return found.reshape(array.shape).astype(array.dtype)


def _joined(group: Any, array: np.ndarray) -> np.ndarray:
    """The arrays of all ranks one behind the other: each adds zeros in the places of others."""
    own = [0.0] * group.size
    own[group.place.rank] = float(len(array))
    counts = [int(count) for count in group.sum_of(own)]
    whole = np.zeros((sum(counts), *array.shape[1:]), np.float64)
    begin = sum(counts[: group.place.rank])
    whole[begin : begin + len(array)] = array
    found = np.array(group.sum_of(whole.reshape(-1).tolist()))
    return found.reshape(whole.shape).astype(array.dtype)


def public(found: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a program that are for users."""
    return {name: value for name, value in found.items() if not name.startswith(HIDDEN)}


def totalled(objective: Objective, sums: Mapping[str, float], samples: int) -> dict[str, float]:
    """The means over samples by name; that of all losses is made of the means of each, which may
    count otherwise."""
    found = means(sums, samples)
    if objective.totals and all(name in found for name in objective.totals):
        found["loss"] = sum(f * found[name] for name, f in objective.totals.items())
    return found


def _numbers_and_tables(found: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Which results are numbers, and which are arrays."""
    tables = {name: value for name, value in found.items() if np.ndim(value)}
    return {n: float(v) for n, v in found.items() if n not in tables}, tables
