"""The base class of callbacks, the number of epochs that they watch, and early stopping."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import partial
from math import isnan
from typing import Any, Literal

import numpy as np

from minidnn.errors import GraphError, MiniDNNWarning, did_you_mean
from minidnn.training.arguments import check_integer, check_number
from minidnn.training.losses import Loss

__all__ = [
    "Best",
    "Callback",
    "Direction",
    "EarlyStopping",
    "Monitored",
]


class Callback:
    """The methods that :meth:`Trainer.fit` calls; a subclass defines those that it needs.

    >>> class Rates(md.callbacks.Callback):
    ...     def after_epoch(self, trainer, record):
    ...         print(record["rate"])
    """

    def begin(self, trainer: Any, epochs: int) -> None:
        """Is called before the first step."""

    def after_step(self, trainer: Any) -> None:
        """Is called after each batch; ``trainer.last`` has the loss and the measures."""

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        """Is called after each epoch, with its record; ``trainer.stop = True`` ends training."""

    def interrupted(self, trainer: Any) -> None:
        """Is called after Ctrl-C, or when ``trainer.halt`` was set."""

    def finished(self, trainer: Any) -> None:
        """Is called after the last epoch, unless training was interrupted or failed."""

    def end(self, trainer: Any) -> None:
        """Is called at the end in any case."""


Direction = Literal["least", "most"] | None

#: Words in names of measures that are better when they are less, and when they are more.
_LEAST = re.compile(
    r".*loss|.*errors?|err|losses|.*mae|.*mse|s?mape|r?msle|nll|perplexity|ppl|bpc|hamming|wer|cer"
    r"|fpr|fnr|fid|lpips|brier|ece|distance|divergence|entropy|crossentropy|cost|huber|hinge"
)
_MOST = re.compile(
    r".*accuracy|acc|f\d+(score)?|fbeta|auc|auroc|roc|m?ap|m?iou|dice|jaccard|precision|recall"
    r"|sensitivity|specificity|psnr|ssim|r2|kappa|mcc|correlation|pearson|spearman|ndcg|mrr|bleu"
    r"|rouge|hits|tpr|tnr|correct|top_?\d*k?"
)


def direction_of(name: str, function: Any = None) -> Direction:
    """Whether less or more is better, by the measure itself or its name; None if neither tells."""
    declared = getattr(function, "best", None)
    if declared in ("least", "most"):
        return declared
    if isinstance(function, Loss):
        return "least"
    separated = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    words = [word for word in re.split(r"[^a-z0-9]+", f"{name}_{separated}".lower()) if word]
    least, most = (any(way.fullmatch(word) for word in words) for way in (_LEAST, _MOST))
    if least == most:
        return None
    return "least" if least else "most"


class Monitored:
    """The number of epochs' records that a callback watches, and which way it is better.

    Where records have that number of validation, it counts.  Numbers of training and of validation
    are never compared: the first record with one of validation begins anew, and one without it
    afterwards is refused.
    """

    def __init__(self, owner: object, monitor: str, best: Direction) -> None:
        self._owner = type(owner).__name__
        if best not in (None, "least", "most"):
            raise GraphError(
                f"{self._owner}: best={best!r:.80}; valid are 'least', 'most' and None, which is "
                "what the measure says itself"
            )
        self.monitor, self.direction = monitor, best
        #: The name of the last record's number; None before the first record.
        self.name: str | None = None

    def settle(self, measures: Mapping[str, Any]) -> None:
        """Determines whether less or more is better; GraphError if nothing tells."""
        measure = self.monitor.removeprefix("validation_")
        direction = self.direction or direction_of(measure, measures.get(measure))
        if direction is None:
            if measure not in measures and (hint := did_you_mean(measure, measures)):
                raise GraphError(f"{self._owner}: epochs have no {self.monitor!r}{hint}")
            raise GraphError(
                f"{self._owner}: best=None, and {self.monitor!r} does not say which way is better; "
                "valid are 'least' and 'most'"
            )
        self.direction = direction

    def number_of(self, record: Mapping[str, Any]) -> tuple[float, bool]:
        """The number of an epoch, and whether it is not to be compared with those before."""
        name = f"validation_{self.monitor}"
        if name not in record:
            name = self.monitor
        if name not in record:
            hint = did_you_mean(name, record) or f"; valid are {', '.join(record)}"
            raise GraphError(f"{self._owner}: epochs have no {self.monitor!r}{hint}")
        is_first = name != self.name
        if is_first and self.name is not None and name == self.monitor:
            raise GraphError(
                f"{self._owner}: this epoch has no {self.name!r}, which the best so far was found "
                "by; valid is fit(..., validate=) as before, or another trainer"
            )
        self.name = name
        return float(record[name]), is_first


class Best(Monitored):
    """The best record so far by one of its numbers.  NaN is never the best."""

    def __init__(self, owner: object, monitor: str, best: Direction, least: float = 0.0) -> None:
        super().__init__(owner, monitor, best)
        self._step = least
        self.number: float | None = None

    def is_better(self, record: Mapping[str, Any]) -> bool:
        """Whether an epoch is better than all before; if so, it is the best from now on."""
        number, is_first = self.number_of(record)
        if is_first:
            self.number = None
        score = number if self.direction == "most" else -number
        if isnan(score) or (self.number is not None and not score > self.number + self._step):
            return False
        self.number = score
        return True


class EarlyStopping(Callback):
    """Ends training that gets no better.

    Figures of validation count where there are some, and are never compared with those of training.
    NaN is no better than anything, and any number is better than NaN.

    Args:
        monitor: a name of the record, of validation where it has that.
        patience: the number of epochs without a better one that ends training.
        best: "least" or "most"; None is what the measure says: losses, metrics of
            :mod:`minidnn.metrics`, functions with an attribute ``best``, and names such as "mae" or
            "top5" do.  Others need it.
        change: the least difference that counts as better.
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
        check_integer(self, "patience", patience, 1)
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
