"""Callbacks that show how training goes, or write it to files."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from minidnn.errors import DeviceError
from minidnn.training.arguments import check_integer, check_number
from minidnn.training.callbacks.callback import Callback

__all__ = ["CSV", "JSONLines", "ProgressBar", "TensorBoard"]


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
        means = at.means()
        means["images/s"] = (at.samples - self._samples) / (now - self._begun)
        self._write(f"\repoch {at.epoch + 1}/{self._epochs} {at.position}/{size} {_shown(means)}  ")

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        shown = {key: record[key] for key in record if key not in ("epoch", "steps")}
        self._write(f"\repoch {record['epoch']}/{self._epochs} {_shown(shown)}  \n")
        self._begun, self._samples = time.perf_counter(), 0

    def interrupted(self, trainer: Any) -> None:
        at = trainer.progress
        self._write(f"\ninterrupted after {at.position} batches of epoch {at.epoch + 1}\n")

    def _write(self, text: str) -> None:
        file = sys.stderr if self._file is None else self._file
        file.write(text)
        file.flush()


def _shown(numbers: dict[str, Any]) -> str:
    """Names and numbers as text."""
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

    A number always stands below its name, whatever other epochs have: a name that is new becomes a
    column at the end, for which the file is written anew, and a name that is missing an empty cell.

    Args:
        path: of the file.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1))
    >>> history = trainer.fit(batches, epochs=1, callbacks=[md.callbacks.CSV("log.csv")])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        rows = self._rows()
        names = list(rows[0]) if rows else []
        new = [name for name in record if name not in names]
        names += new
        row = [record.get(name, "") for name in names]
        if not new:
            with open(self.path, "a", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow(row)
            return
        filled = [old + [""] * (len(names) - len(old)) for old in rows[1:]]
        replacement = self.path.with_name(f"{self.path.name}.new")
        with open(replacement, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([names, *filled, row])
        os.replace(replacement, self.path)

    def _rows(self) -> list[list[str]]:
        """The rows of the file; a last row that is incomplete is cut off."""
        if not self.path.exists():
            return []
        text = self.path.read_bytes()
        complete = text[: text.rfind(b"\n") + 1]
        if complete != text:
            with open(self.path, "r+b") as file:
                file.truncate(len(complete))
        return list(csv.reader(io.StringIO(complete.decode("utf-8"), newline="")))


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
        check_integer(self, "every", every, 1)
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
