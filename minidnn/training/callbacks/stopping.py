"""Ends training that gets no better."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from minidnn.errors import MiniDNNWarning
from minidnn.training.arguments import check_number, check_whole
from minidnn.training.callbacks.callback import Best, Callback, Direction

__all__ = ["EarlyStopping"]


class EarlyStopping(Callback):
    """Ends training that gets no better.

    Figures of validation count where there are some, and are never compared with those of training.
    NaN is no better than anything, and any number is better than NaN.

    Args:
        monitor: a name of the record, of validation where it has that.
        patience: after so many epochs without a better one.
        best: "least" or "most"; None is what the measure says: losses, metrics of
            :mod:`minidnn.metrics`, functions with an attribute ``best``, and names such as "mae" or
            "top5" do.  Of others it is asked.
        change: what counts as better must be so by that much.
        restore_best: whether parameters and statistics are those of the best epoch when ``fit``
            returns, unless it was interrupted.  What the optimizer keeps stays.

    Raises:
        GraphError: an argument is not valid.

    >>> stop = md.callbacks.EarlyStopping("accuracy", patience=3, restore_best=True)
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
        restore_best: bool = False,
    ) -> None:
        check_whole(self, "patience", patience, 1)
        check_number(self, "change", change, 0)
        self.patience, self.restore_best = patience, restore_best
        self._make = partial(Best, self, monitor, best, change)
        self._best, self._waited = self._make(), 0
        self._kept: dict[str, np.ndarray] | None = None
        self._is_done = False

    def begin(self, trainer: Any, epochs: int) -> None:
        self._best, self._waited, self._kept, self._is_done = self._make(), 0, None, False
        self._best.settle(trainer.measures)
        for record in trainer.history:
            self._see(record)

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        if self._see(record) and self.restore_best:
            self._kept = trainer.snapshot()
        trainer.stop = trainer.stop or self._waited >= self.patience

    def finished(self, trainer: Any) -> None:
        self._is_done = True

    def end(self, trainer: Any) -> None:
        if not (self.restore_best and self._is_done):
            return
        if self._kept is None:
            warnings.warn(
                f"EarlyStopping: restore_best=True, and no epoch of this fit() had a better "
                f"{self._best.name or self._best.monitor!r} than those before; the parameters are "
                "those of the last epoch",
                MiniDNNWarning,
                stacklevel=4,
            )
            return
        trainer.take_snapshot(self._kept)

    def _see(self, record: dict[str, Any]) -> bool:
        is_better = self._best.is_better(record)
        self._waited = 0 if is_better else self._waited + 1
        return is_better
