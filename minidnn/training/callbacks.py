"""Callbacks: what happens beside training, after a step or an epoch of :meth:`Trainer.fit`."""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

from minidnn.errors import DeviceError, GraphError, did_you_mean
from minidnn.training.arguments import check_number, check_whole

__all__ = [
    "CSV",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "JSONLines",
    "ProgressBar",
    "RayReport",
    "TensorBoard",
]

Direction = Literal["least", "most"] | None


class Callback:
    """What :meth:`Trainer.fit` calls; a subclass defines what it needs.

    >>> class Rates(md.callbacks.Callback):
    ...     def after_epoch(self, trainer, record):
    ...         print(record["rate"])
    """

    def begin(self, trainer: Any, epochs: int) -> None:
        """Before the first step."""

    def after_step(self, trainer: Any) -> None:
        """After each batch; ``trainer.last`` has the loss and the measures."""

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        """After each epoch, with what it measured; ``trainer.stop = True`` ends training."""

    def interrupted(self, trainer: Any) -> None:
        """After Ctrl-C."""

    def end(self, trainer: Any) -> None:
        """At the end, whatever it was."""


class ProgressBar(Callback):
    """Shows loss, measures and images a second in one line, and a line for each epoch.

    Args:
        file: where to; None is standard error.
        every: the least seconds from one line to the next.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1))
    >>> history = trainer.fit(batches, epochs=1, callbacks=[md.callbacks.ProgressBar()])
    """

    def __init__(self, file: TextIO | None = None, every: float = 0.2) -> None:
        check_number(self, "every", every, 0)
        self._file, self._every = file, every
        self._shown = self._begun = 0.0
        self._epochs = self._samples = 0

    def begin(self, trainer: Any, epochs: int) -> None:
        self._epochs, self._begun = epochs, time.perf_counter()
        self._samples = trainer.progress.samples

    def after_step(self, trainer: Any) -> None:
        now, at = time.perf_counter(), trainer.progress
        if now - self._shown < self._every:
            return
        self._shown = now
        size = len(trainer.loader) if hasattr(trainer.loader, "__len__") else "?"
        means = {name: total / at.samples for name, total in at.sums.items()}
        means["images/s"] = (at.samples - self._samples) / (now - self._begun)
        self._write(f"\repoch {at.epoch + 1}/{self._epochs} {at.position}/{size} {_shown(means)}  ")

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        left = {key: record[key] for key in record if key not in ("epoch", "steps")}
        self._write(f"\repoch {record['epoch']}/{self._epochs} {_shown(left)}  \n")
        self._begun, self._samples = time.perf_counter(), 0

    def interrupted(self, trainer: Any) -> None:
        at = trainer.progress
        self._write(f"\ninterrupted after {at.position} batches of epoch {at.epoch + 1}\n")

    def _write(self, text: str) -> None:
        file = sys.stderr if self._file is None else self._file
        file.write(text)
        file.flush()


def _shown(numbers: dict[str, Any]) -> str:
    return " ".join(f"{name} {number:.4g}" for name, number in numbers.items())


class JSONLines(Callback):
    """Adds a line of JSON with each epoch's record to a file.

    Args:
        path: of the file.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1))
    >>> history = trainer.fit(batches, epochs=1, callbacks=[md.callbacks.JSONLines("log.jsonl")])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


class CSV(Callback):
    """Adds a row with each epoch's record to a file, whose first row has the names.

    Args:
        path: of the file.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1))
    >>> history = trainer.fit(batches, epochs=1, callbacks=[md.callbacks.CSV("log.csv")])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        is_new = not self.path.exists() or not self.path.stat().st_size
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(record)
            writer.writerow(record.values())


class TensorBoard(Callback):
    """Writes losses and measures for TensorBoard: after steps by names that begin with ``step/``,
    and each epoch's record by names that begin with ``epoch/``, all by the number of the step.

    Args:
        folder: where to; each run writes a file of its own there.
        every: after so many steps.

    Raises:
        DeviceError: the package tensorboard is not installed.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1))
    >>> history = trainer.fit(batches, epochs=1, callbacks=[md.callbacks.TensorBoard("runs")])
    """

    def __init__(self, folder: str | os.PathLike[str], every: int = 10) -> None:
        check_whole(self, "every", every, 1)
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise DeviceError(
                f"TensorBoard needs the package tensorboard, which cannot be imported ({error}); "
                "pip install 'minidnn[tensorboard]'"
            ) from error
        self.folder, self.every = Path(folder), every
        self._open, self._event, self._summary = EventFileWriter, event_pb2.Event, summary_pb2
        self._writer: Any = None

    def begin(self, trainer: Any, epochs: int) -> None:
        self._writer = self._open(os.fspath(self.folder))

    def after_step(self, trainer: Any) -> None:
        if trainer.progress.batches % self.every == 0:
            self._write("step", trainer.last, trainer.progress.steps)

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        numbers = {name: record[name] for name in record if name not in ("epoch", "steps")}
        self._write("epoch", numbers, record["steps"])
        self._writer.flush()

    def end(self, trainer: Any) -> None:
        self._writer.close()

    def _write(self, group: str, numbers: Mapping[str, Any], step: int) -> None:
        values = [
            self._summary.Summary.Value(tag=f"{group}/{name}", simple_value=float(number))
            for name, number in numbers.items()
        ]
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))


class _Best:
    """The best record so far by one of its numbers, that of validation where there is one."""

    def __init__(self, owner: object, monitor: str, best: Direction, least: float = 0.0) -> None:
        if best not in (None, "least", "most"):
            raise GraphError(
                f"{type(owner).__name__}: best={best!r:.80}; valid are 'least', 'most' and None, "
                "which is the least loss and the most of all else"
            )
        self.monitor, self._step = monitor, least
        least_is_best = best == "least" or (best is None and "loss" in monitor)
        self._sign = -1.0 if least_is_best else 1.0
        self.number: float | None = None

    def is_better(self, record: dict[str, Any]) -> bool:
        name = f"validation_{self.monitor}"
        if name not in record:
            name = self.monitor
        if name not in record:
            hint = did_you_mean(name, record) or f"; valid are {', '.join(record)}"
            raise GraphError(f"epochs have no {self.monitor!r}{hint}")
        score = self._sign * record[name]
        if self.number is not None and not score > self.number + self._step:
            return False
        self.number = score
        return True


class EarlyStopping(Callback):
    """Ends training that gets no better.

    Args:
        monitor: a name of the record, of validation where it has that.
        patience: after so many epochs without a better one.
        best: "least" or "most"; None is the least loss, and the most of all else.
        change: what counts as better must be so by that much.

    >>> stop = md.callbacks.EarlyStopping("accuracy", patience=3)
    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1))
    >>> history = trainer.fit(batches, epochs=1, callbacks=[stop])
    """

    def __init__(
        self,
        monitor: str = "loss",
        patience: int = 5,
        *,
        best: Direction = None,
        change: float = 0.0,
    ) -> None:
        check_whole(self, "patience", patience, 1)
        check_number(self, "change", change, 0)
        self.patience = patience
        self._make = partial(_Best, self, monitor, best, change)
        self._best, self._waited = self._make(), 0

    def begin(self, trainer: Any, epochs: int) -> None:
        self._best, self._waited = self._make(), 0
        for record in trainer.history:
            self._see(record)

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        self._see(record)
        trainer.stop = trainer.stop or self._waited >= self.patience

    def _see(self, record: dict[str, Any]) -> None:
        self._waited = 0 if self._best.is_better(record) else self._waited + 1


class Checkpoint(Callback):
    """Saves the trainer at the end of epochs, and after Ctrl-C.

    Args:
        path: where to; each file takes the place of the one before.
        every: after so many epochs.
        keep_best: a name of the record, as in :class:`EarlyStopping`: only epochs that are better
            than all before are saved, and after Ctrl-C to the same path with ``.interrupted``
            behind it.
        best: "least" or "most"; None is the least loss, and the most of all else.

    >>> keep = md.callbacks.Checkpoint("run.checkpoint")
    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1))
    >>> history = trainer.fit(batches, epochs=1, callbacks=[keep])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every: int = 1,
        *,
        keep_best: str | None = None,
        best: Direction = None,
    ) -> None:
        check_whole(self, "every", every, 1)
        self.path, self.every, self.keep_best = Path(path), every, keep_best
        self._make = partial(_Best, self, keep_best or "loss", best)
        self._best = self._make()

    def begin(self, trainer: Any, epochs: int) -> None:
        self._best = self._make()
        if self.keep_best is not None:
            for record in trainer.history:
                self._best.is_better(record)

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        if self.keep_best is not None:
            if self._best.is_better(record):
                trainer.save(self.path)
        elif record["epoch"] % self.every == 0:
            trainer.save(self.path)

    def interrupted(self, trainer: Any) -> None:
        apart = self.path.with_name(f"{self.path.name}.interrupted")
        trainer.save(self.path if self.keep_best is None else apart)


class RayReport(Callback):
    """Reports each epoch to Ray Train with a checkpoint, and goes on from its last one.

    A function that makes a trainer with ``distributed=True`` and calls ``fit`` with this is what
    ``ray.train.torch.TorchTrainer`` runs in its workers.  When one of them fails, all end, and
    as often as ``FailureConfig(max_failures=)`` says they begin again where the last checkpoint was
    written, with the same bits.

    Args:
        every: also after so many batches since the last report; None is after epochs alone.

    Raises:
        DeviceError: Ray Train cannot be imported.
        GraphError: ``every`` is no whole number of at least 1.

    >>> def train():  # in each worker
    ...     trainer = md.Trainer(
    ...         net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1), distributed=True
    ...     )
    ...     trainer.fit(batches, epochs=90, callbacks=[md.callbacks.RayReport(every=500)])
    """

    _NAME = "trainer.checkpoint"

    def __init__(self, every: int | None = None) -> None:
        if every is not None:
            check_whole(self, "every", every, 1)
        try:
            import ray.train
        except ImportError as error:
            raise DeviceError(
                f"RayReport needs Ray Train, which cannot be imported ({error}); pip install "
                "'minidnn[ray]'"
            ) from error
        self._ray = ray.train
        self.every = every
        self._since = 0

    def begin(self, trainer: Any, epochs: int) -> None:
        self._since = 0
        last = self._ray.get_checkpoint()
        if last is not None:
            with last.as_directory() as folder:
                trainer.restore(Path(folder) / self._NAME)

    def after_step(self, trainer: Any) -> None:
        self._since += 1
        if self.every is not None and self._since >= self.every:
            measured = {name: float(value) for name, value in trainer.last.items()}
            self._report(trainer, {"steps": trainer.progress.steps, **measured})

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        self._report(trainer, record)

    def _report(self, trainer: Any, record: dict[str, Any]) -> None:
        self._since = 0
        with tempfile.TemporaryDirectory(prefix="minidnn-") as folder:
            trainer.save(Path(folder) / self._NAME)  # of several ranks the first writes
            given = None
            if trainer.rank == 0:
                given = self._ray.Checkpoint.from_directory(folder)
            self._ray.report(dict(record), checkpoint=given)
