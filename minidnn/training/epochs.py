"""Epochs: what :meth:`Trainer.fit` does with batches and callbacks."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import islice
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

from minidnn.errors import GraphError
from minidnn.training.callbacks.callback import Callback
from minidnn.training.launches import Batch, launches, take
from minidnn.training.measuring import numbers_and_tables, totalled

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
        numbers, tables = numbers_and_tables(found)
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
    numbers, trainer.tables = numbers_and_tables(measured.results())
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
