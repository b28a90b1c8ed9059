"""Reports to Ray Train."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from minidnn.errors import DeviceError
from minidnn.training.arguments import check_whole
from minidnn.training.callbacks.callback import Callback

__all__ = ["RayReport"]


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
