"""Saves a trainer while it trains and when a signal ends it; also reports to Ray Train."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Any

from minidnn.errors import DeviceError, GraphError, MiniDNNWarning
from minidnn.preparation import Preparation, metadata_of
from minidnn.training.arguments import check_integer, check_number
from minidnn.training.callbacks.callback import Best, Callback, Direction


class CheckpointWriter:
    """Writes checkpoints in a background thread, one file at a time."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._process = 0

    def start(self, write: Callable[[], None]) -> None:
        """Starts a write when the one before is complete; raises the error of that one."""
        self.wait()

        def work() -> None:
            try:
                write()
            except BaseException as error:
                self._error = error

        self._process = os.getpid()
        self._thread = Thread(target=work, name="minidnn-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Waits until the write that was started is complete; raises its error."""
        thread, self._thread = self._thread, None
        if thread is not None and self._process == os.getpid():  # a fork has no such thread
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error


#: Signals that end training; at others it saves and goes on.
ENDS = ("SIGTERM", "SIGINT")
#: Signals at which a trainer may save.
VALID = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP")


class Signals:
    """Handles signals from :meth:`begin` to :meth:`end`, so that they do not end the process.

    A handler that a program has set itself stays.  After the first signal of a kind that ends
    training, the handler from before is back, so that the second one ends the process at once.
    """

    def __init__(self, owner: object, names: Sequence[str]) -> None:
        listed = [names] if isinstance(names, str) else list(names)
        for name in listed:
            if name not in VALID:
                raise GraphError(
                    f"{type(owner).__name__}: signals={name!r:.80}; valid are {', '.join(VALID)}"
                )
        self.names = tuple(listed)
        self._before: dict[int, Any] = {}

    def begin(self, note: Callable[[str], None]) -> None:
        """Has ``note`` called with the name of each signal that comes."""
        self.end()
        if current_thread() is not main_thread():
            return  # signals come to the main thread alone

        def came(number: int, frame: FrameType | None) -> None:
            name = signal.Signals(number).name
            if name in ENDS:
                signal.signal(number, self._before[number])
            note(name)

        for name in self.names:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.SIG_DFL
                signal.signal(number, came)

    def end(self) -> None:
        """Restores the handlers from before."""
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}


__all__ = ["Checkpoint"]

#: The number of batches after which ranks agree whether a save is due.
_AGREE = 16


class Checkpoint(Callback):
    """Saves the trainer: after epochs, steps, minutes, at the end, after Ctrl-C, and at signals.

    Slurm and Kubernetes send SIGTERM before they end a process: training saves after the running
    step, ``fit`` returns with ``trainer.interrupted``, and a second SIGTERM ends the process at
    once.  SIGUSR1, as of ``sbatch --signal=USR1@120``, saves and goes on.  Handlers that a program
    has set itself stay.  Ranks that train together save at the same step, which they agree on after
    every 16 batches.

    Args:
        path: where to; each file takes the place of the one before.
        every: after so many epochs, and after the last one; None is after the last one alone.
        every_steps: also after each of so many updates of the parameters.
        every_minutes: also when so many minutes went by since the last save.
        signals: names of signals to save at.
        background: whether files are written while training goes on.  States are copied first; a
            file is there when the next one begins, and when ``fit`` returns.
        keep_best: a name of the record, as in :class:`EarlyStopping`: only epochs that are better
            than all before are saved, and whatever else is due to the same path with
            ``.interrupted`` behind it.
        best: "least" or "most"; None is what the measure says, as in :class:`EarlyStopping`.
        preparation: how pictures are prepared, which ``load_preparation`` gives back.

    Raises:
        GraphError: an argument is not valid.

    >>> keep = md.callbacks.Checkpoint("run.checkpoint", every_minutes=30)
    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1))
    >>> history = trainer.fit(batches, epochs=1, callbacks=[keep])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every: int | None = 1,
        *,
        every_steps: int | None = None,
        every_minutes: float | None = None,
        signals: Sequence[str] = ("SIGTERM", "SIGUSR1"),
        background: bool = False,
        keep_best: str | None = None,
        best: Direction = None,
        preparation: Preparation | None = None,
    ) -> None:
        metadata_of(preparation)  # says what is wrong with it
        self.preparation = preparation
        for name, count in (("every", every), ("every_steps", every_steps)):
            if count is not None:
                check_integer(self, name, count, 1)
        if every_minutes is not None:
            check_number(self, "every_minutes", every_minutes, 0)
        if keep_best is None and best is not None:
            raise GraphError(
                f"Checkpoint: best={best!r:.80} with keep_best=None; valid is it with keep_best"
            )
        if keep_best is not None and every not in (None, 1):
            raise GraphError(
                f"Checkpoint: every={every} with keep_best={keep_best!r:.80}, which looks at each "
                "epoch; valid is one of them"
            )
        self.path, self.every, self.keep_best = Path(path), every, keep_best
        self.every_steps, self.every_minutes = every_steps, every_minutes
        self._make = partial(Best, self, keep_best or "loss", best)
        self._best = self._make()
        self._signals = Signals(self, signals)
        self._writer = CheckpointWriter() if background else None
        self._asked: set[str] = set()
        self._saved_at, self._steps, self._saved = 0.0, 0, -1

    def begin(self, trainer: Any, epochs: int) -> None:
        self._best, self._asked = self._make(), set()
        self._saved_at, self._steps, self._saved = time.monotonic(), trainer.progress.steps, -1
        if self.keep_best is not None:
            self._best.settle(trainer.measures)
            for record in trainer.history:
                self._best.is_better(record)
        self._signals.begin(partial(self._note, trainer))

    def after_step(self, trainer: Any) -> None:
        steps = trainer.reached.steps
        due = self.every_steps is not None and steps // self.every_steps > (
            self._steps // self.every_steps
        )
        self._steps = steps
        if self._agreed(trainer) or due:
            self._save(trainer, self._beside)

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        if self.keep_best is not None:
            if self._best.is_better(record):
                self._save(trainer, self.path)
        elif self.every is not None and record["epoch"] % self.every == 0:
            self._save(trainer, self.path)

    def interrupted(self, trainer: Any) -> None:
        self._save(trainer, self._beside)
        self._wait()

    def finished(self, trainer: Any) -> None:
        if self.keep_best is None and self._saved != trainer.progress.batches:
            self._save(trainer, self.path)
        if self.keep_best is not None and self._best.number is None and trainer.history:
            warnings.warn(
                f"Checkpoint: {self._best.name!r} was NaN in all epochs; {self.path} was not saved",
                MiniDNNWarning,
                stacklevel=4,
            )
        self._wait()

    def end(self, trainer: Any) -> None:
        self._signals.end()
        self._wait()

    @property
    def _beside(self) -> Path:
        """The path of saves that need not be the best epoch's."""
        return self.path.with_name(f"{self.path.name}{'.interrupted' if self.keep_best else ''}")

    def _note(self, trainer: Any, name: str) -> None:
        """Notes a signal, for the end of the running step."""
        if trainer.group is None and name in ENDS:
            trainer.halt = name
        self._asked.add(name)

    def _agreed(self, trainer: Any) -> bool:
        """Whether a signal or the clock asks for a save, on any rank."""
        minutes = (time.monotonic() - self._saved_at) / 60
        late = self.every_minutes is not None and minutes >= self.every_minutes
        if trainer.group is None:
            return late or bool(self._asked - {*ENDS})
        if trainer.progress.batches % _AGREE:
            return False
        ends = bool(self._asked & {*ENDS})
        goes_on = (late and trainer.rank == 0) or bool(self._asked - {*ENDS})
        ends, goes_on = map(bool, trainer.group.sum_of([float(ends), float(goes_on)]))
        if ends:
            trainer.halt = "SIGTERM"  # and interrupted() saves
        return goes_on and not ends

    def _save(self, trainer: Any, path: Path) -> None:
        self._asked.clear()
        self._saved_at = time.monotonic()
        if path == self.path:
            self._saved = trainer.reached.batches
        trainer.save(path, writer=self._writer, preparation=self.preparation)

    def _wait(self) -> None:
        if self._writer is not None:
            self._writer.wait()


class RayReport(Callback):
    """Reports each epoch to Ray Train with a checkpoint, and goes on from its last one.

    A function that makes a trainer with ``distributed=True`` and calls ``fit`` with this is what
    ``ray.train.torch.TorchTrainer`` runs in its workers.  When one of them fails, all end, and
    as often as ``FailureConfig(max_failures=)`` says they begin again where the last checkpoint was
    written, with the same bits.

    Args:
        every: report also after so many batches since the last report; None is after epochs alone.

    Raises:
        DeviceError: Ray Train cannot be imported.
        GraphError: ``every`` is no integer of at least 1.

    >>> def train():  # in each worker
    ...     trainer = md.Trainer(
    ...         net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1), distributed=True
    ...     )
    ...     trainer.fit(batches, epochs=90, callbacks=[md.callbacks.RayReport(every=500)])
    """

    _NAME = "trainer.checkpoint"

    def __init__(self, every: int | None = None) -> None:
        if every is not None:
            check_integer(self, "every", every, 1)
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
            saved = None
            if trainer.rank == 0:
                saved = self._ray.Checkpoint.from_directory(folder)
            self._ray.report(dict(record), checkpoint=saved)
