"""Runs the epochs of :meth:`Trainer.fit`: batches, callbacks, interrupts, and each epoch's record.

A record has means of losses and measures over samples, and metrics of the whole epoch, which
:class:`SetMeasures` keeps; both can be combined over ranks.
"""

from __future__ import annotations

import json
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
    """The arguments of :meth:`Trainer.fit`."""

    train: Iterable[Any]
    epochs: int
    validate: Iterable[Any] | None
    callbacks: Sequence[Callback]
    stop_on_nan: bool


def run(trainer: Any, given: FitArguments) -> None:
    """Trains until ``given.epochs`` epochs are complete in all; see :meth:`Trainer.fit`."""
    trainer.stop, trainer.halt, trainer.interrupted = False, None, False
    trainer.loader, trainer.place = given.train, None
    trainer.place = trainer.loader_is_at()
    try:
        for callback in given.callbacks:
            callback.begin(trainer, given.epochs)
        trainer.place = trainer.loader_is_at()
        while trainer.progress.epoch < given.epochs and not trainer.stop:
            _epoch(trainer, given)
            _look_at_halt(trainer)
        for callback in given.callbacks:
            callback.finished(trainer)
    except KeyboardInterrupt:
        if trainer.group is not None and trainer.halt is None:
            raise
        # The loader may have given a batch that was not trained on.
        trainer.interrupted, trainer.loader_state = True, trainer.place
        for callback in given.callbacks:
            callback.interrupted(trainer)
    finally:
        for callback in given.callbacks:
            callback.end(trainer)
        trainer.place = None


def _look_at_halt(trainer: Any) -> None:
    """Raises KeyboardInterrupt if training is to end after this step."""
    if trainer.halt is not None:
        raise KeyboardInterrupt


def _epoch(trainer: Any, given: FitArguments) -> None:
    """Trains for the rest of an epoch, evaluates, and adds its record to the history."""
    at, begin = trainer.progress, time.perf_counter()
    samples = 0
    for batches in launches(_batches(trainer, given.train), trainer.steps_per_launch):
        with interrupts_wait():
            told, error = take(trainer, batches, given.stop_on_nan)
        samples += sum(batch.samples for batch in batches)
        try:
            for trainer.progress, trainer.last in told:
                trainer.launched = at
                for callback in given.callbacks:
                    callback.after_step(trainer)
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
    record["images_per_second"] = samples / seconds
    if given.validate is not None:
        evaluated = trainer.evaluate(_until_halt(trainer, given.validate))
        numbers, tables = _numbers_and_tables(evaluated)
        record |= {f"validation_{name}": number for name, number in numbers.items()}
        trainer.tables |= {f"validation_{name}": table for name, table in tables.items()}
    with interrupts_wait():
        at.epoch, at.position, at.samples, at.sums = at.epoch + 1, 0, 0, {}
        trainer.measured.states = {}
        trainer.history.append(record)
        trainer.place = trainer.loader_is_at()
    for callback in given.callbacks:
        callback.after_epoch(trainer, record)


def _measured(trainer: Any) -> Record:
    """The metrics of the whole epoch that are numbers; arrays become the trainer's tables."""
    measured = copy(trainer.measured)
    if trainer.group is not None:
        measured.gather(trainer.group)
    numbers, trainer.tables = _numbers_and_tables(measured.results())
    return numbers


def _until_halt(trainer: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields batches for evaluation; raises KeyboardInterrupt once training is to end."""
    for batch in trainer.feeding.pairs("evaluate", batches):
        _look_at_halt(trainer)
        yield batch


def _batches(trainer: Any, train: Iterable[Any]) -> Iterator[Batch]:
    """Yields the batches of the epoch, with the loader's state after each."""
    for x, target in _rest(trainer, train):
        inputs, shapes = trainer.feeding.inputs(x)
        yield Batch(x, target, inputs, shapes, trainer.loader_is_at())


def _rest(trainer: Any, train: Iterable[Any]) -> Iterable[tuple[Any, Any]]:
    """The batches of the epoch that are not trained on yet: all, unless a checkpoint was read
    within it.
    """
    state, trainer.loader_state = trainer.loader_state, None
    restore: Callable[[Any], None] | None = getattr(train, "restore", None)
    if restore is not None:
        if state is not None:
            restore(state)
        return trainer.feeding.pairs("fit", train)
    return _after(trainer.feeding.pairs("fit", train), trainer.progress.position)


def _after(batches: Iterable[tuple[Any, Any]], position: int) -> Iterator[tuple[Any, Any]]:
    """Yields the batches behind those of a checkpoint; GraphError if there are fewer than these."""
    rest = iter(batches)
    passed = sum(1 for _ in islice(rest, position))
    if passed < position:
        raise GraphError(
            f"fit: train has {passed} batches, and the checkpoint was written after {position} of "
            "its epoch; valid is the loader that was trained on then"
        )
    yield from rest


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delays Ctrl-C until the block is done, so that what belongs together happens as a whole; a
    second Ctrl-C is not delayed.

    Python handles a signal when native code returns: the states of a step have changed by then, and
    the counts of steps have not.
    """
    handler = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(handler):
        yield  # this thread gets no signals, or Ctrl-C has no handler in Python
        return
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        if len(arrived) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if arrived:
        handler(arrived[0], None)


#: Between the names of a metric and of one of its states, in checkpoints.
_SEPARATOR = "/"


class SetMeasures:
    """The states that metrics of whole sets keep of the batches so far.

    Args:
        objective: has the metrics.
        feeding: knows the shapes of outputs.
    """

    def __init__(self, objective: Objective, feeding: Feeding) -> None:
        #: The metrics that are computed over whole sets.
        self.metrics = [m for m in objective.measures if isinstance(m.function, Metric)]
        self._terms = [term.name for term in objective.terms]
        self._feeding = feeding
        self.states: dict[str, States] = {}

    def see(
        self,
        found: Mapping[str, Any],
        targets: Sequence[Any],
        shapes: tuple[tuple[int, ...], ...],
    ) -> None:
        """Adds a batch to the states: the results of its program, and its targets."""
        for measure in self.metrics:
            metric: Any = measure.function
            seen = [on_host(found[name]) for name in measure.seen_names(found)]
            i = self._terms.index(measure.term) if measure.term in self._terms else 0
            shape = self._feeding.output_shape(measure.term, shapes)
            new = metric.taken(seen, on_host(targets[i]), shape)
            self.states[measure.name] = merged(metric, self.states.get(measure.name), new)

    def results(self) -> dict[str, Any]:
        """The metrics of all batches so far, by name: numbers and arrays."""
        results = {}
        for measure in self.metrics:
            if measure.name in self.states:
                metric: Any = measure.function
                results[measure.name] = metric.result(self.states[measure.name])
        return results

    def arrays(self) -> dict[str, np.ndarray]:
        """The states as arrays, by their names in a checkpoint."""
        return {
            f"{name}{_SEPARATOR}{key}": np.asarray(array)
            for name, states in self.states.items()
            for key, array in states.items()
        }

    def take(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets the states from :meth:`arrays`; those of other metrics are left out."""
        states: dict[str, dict[str, np.ndarray]] = {}
        known = {measure.name for measure in self.metrics}
        for name, array in arrays.items():
            metric, _, key = name.rpartition(_SEPARATOR)
            if metric in known:
                states.setdefault(metric, {})[key] = np.array(array)
        self.states = dict(states)

    def gather(self, group: Any) -> None:
        """Combines the states of all ranks; each rank has the combined states then.

        A rank may have no states yet, as one whose part of the data has no batches.
        """
        gathered = {}
        for measure in self.metrics:
            metric: Any = measure.function
            states = self.states.get(measure.name) or {}
            if zeros := _of_another_rank(group, states):
                states = zeros if metric.adds else {key: a[:0] for key, a in zeros.items()}
            gathered[measure.name] = {
                key: (_summed if metric.adds else _concatenated)(group, array)
                for key, array in sorted(states.items())
            }
        self.states = {name: states for name, states in gathered.items() if states}


def over_ranks(
    group: Any, sums: Mapping[str, float], samples: int, names: Iterable[str]
) -> tuple[dict[str, float], int]:
    """The sums over all ranks by these names, and the samples of all ranks.

    A hidden count is summed if any rank has it; a rank without it adds its samples.
    """
    wanted = [*names]
    hidden = [HIDDEN + name for name in wanted]
    values = [*(sums.get(n, 0.0) for n in wanted), *(sums.get(n, float(samples)) for n in hidden)]
    is_counted = [float(name in sums) for name in hidden]
    totals = group.sum_of([*values, *is_counted, samples])
    size = len(wanted)
    means = dict(zip(wanted, totals[:size], strict=True))
    counts = zip(hidden, totals[size : 2 * size], totals[2 * size : -1], strict=True)
    return means | {name: count for name, count, is_there in counts if is_there}, int(totals[-1])


def _of_another_rank(group: Any, states: States) -> States:
    """Zeros like the states of the first rank that has some, on a rank that has none; else
    nothing."""
    layout = [[key, array.dtype.str, array.shape] for key, array in sorted(states.items())]
    text = json.dumps(layout).encode() if layout else b""
    rank = group.place.rank
    lengths = [int(n) for n in group.sum_of([len(text) * (i == rank) for i in range(group.size)])]
    if all(lengths) or not any(lengths):
        return {}
    first = next(i for i, length in enumerate(lengths) if length)
    letters = group.sum_of(list(text) if rank == first else [0.0] * lengths[first])
    if layout:
        return {}
    told = json.loads(bytes(map(int, letters)))
    return {key: np.zeros(shape, dtype) for key, dtype, shape in told}


def _summed(group: Any, array: np.ndarray) -> np.ndarray:
    """An array summed over all ranks."""
    total = np.array(group.sum_of(np.asarray(array, np.float64).reshape(-1).tolist()))
    return total.reshape(array.shape).astype(array.dtype)


def _concatenated(group: Any, array: np.ndarray) -> np.ndarray:
    """The arrays of all ranks, concatenated along axis 0.

    Each rank fills its rows of an array of zeros, and the sum over ranks has all rows.
    """
    lengths = [0.0] * group.size
    lengths[group.place.rank] = float(len(array))
    counts = [int(count) for count in group.sum_of(lengths)]
    rows = np.zeros((sum(counts), *array.shape[1:]), np.float64)
    begin = sum(counts[: group.place.rank])
    rows[begin : begin + len(array)] = array
    total = np.array(group.sum_of(rows.reshape(-1).tolist()))
    return total.reshape(rows.shape).astype(array.dtype)


def totalled(objective: Objective, sums: Mapping[str, float], samples: int) -> dict[str, float]:
    """The means over samples by name.

    The mean of all losses is the weighted sum of the means of each, since these may be taken over
    different counts.
    """
    results = means(sums, samples)
    if objective.totals and all(name in results for name in objective.totals):
        results["loss"] = sum(factor * results[name] for name, factor in objective.totals.items())
    return results


def _numbers_and_tables(found: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Splits results into numbers and arrays."""
    tables = {name: value for name, value in found.items() if np.ndim(value)}
    return {n: float(v) for n, v in found.items() if n not in tables}, tables
