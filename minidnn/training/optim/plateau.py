"""A learning rate that falls when training no longer gets better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from math import inf, isnan
from typing import Any, Literal

from minidnn.errors import GraphError
from minidnn.training.arguments import check_integer, check_number
from minidnn.training.callbacks.callback import Callback, Direction, Monitored
from minidnn.training.optim.optimizer import Optimizer

__all__ = ["ReduceOnPlateau"]


class ReduceOnPlateau(Callback):
    """A callback that multiplies the learning rate by a factor when a measure no longer gets
    better. The arguments are those of PyTorch's ``ReduceLROnPlateau``.

    It works on whatever schedule the optimizer has. A run that goes on from a checkpoint has the
    rates that it would have had, as the trainer's history says.

    Args:
        monitor: a name of epochs' records, such as "loss" or "accuracy"; that of validation counts
            where there is one.
        factor: what the rate is multiplied by, less than 1.
        patience: the number of epochs in a row that may be no better.
        best: "least" or "most"; None is what the measure says, as in :class:`EarlyStopping`.
        threshold: by how much an epoch must be better to count as such.
        threshold_mode: "rel", a part of the best so far, or "abs", a number.
        cooldown: the number of epochs that are not counted after the rate fell.
        min_lr: the rate does not fall below it.
        eps: a rate that would fall by no more than that stays.

    Raises:
        GraphError: an argument is not valid, or, in ``fit``, records have no such name, nothing
            says which way is better, or an epoch lacks the validation that epochs before it had.

    >>> plateau = md.optim.ReduceOnPlateau("loss", factor=0.5, patience=3)
    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1))
    >>> history = trainer.fit(batches, epochs=1, callbacks=[plateau])
    """

    def __init__(
        self,
        monitor: str = "loss",
        factor: float = 0.1,
        patience: int = 10,
        *,
        best: Direction = None,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        check_number(self, "factor", factor, 0, 1)
        if factor == 1:
            raise GraphError("ReduceOnPlateau: factor=1; valid is a number below 1")
        check_integer(self, "patience", patience, 0)
        check_integer(self, "cooldown", cooldown, 0)
        for name, value in (("threshold", threshold), ("min_lr", min_lr), ("eps", eps)):
            check_number(self, name, value, 0)
        if threshold_mode not in ("rel", "abs"):
            raise GraphError(
                f"ReduceOnPlateau: threshold_mode={threshold_mode!r:.80}; valid are 'rel' and 'abs'"
            )
        self.monitor, self.factor, self.patience = monitor, factor, patience
        self._make = partial(Monitored, self, monitor, best)
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.min_lr, self.eps = cooldown, min_lr, eps
        self._restart()

    def _restart(self) -> None:
        #: The factor that rates are multiplied by now.
        self.scale = 1.0
        self._monitored = self._make()
        self._found: float | None = None
        self._bad = self._cooling = 0

    def begin(self, trainer: Any, epochs: int) -> None:
        self._restart()
        self._monitored.settle(trainer.measures)
        trainer.optimizer = _with_rates(trainer.optimizer, self)
        base = _base(trainer.optimizer)
        for record in trainer.history:
            self._see(record, base(max(0, int(record["steps"]) - 1)))

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        self._see(record, _base(trainer.optimizer)(max(0, trainer.progress.steps - 1)))

    def lowered(self, rate: float) -> float:
        """A rate of the optimizer's schedule, lowered as far as the plateau has it now."""
        return min(rate, max(rate * self.scale, self.min_lr))

    def _see(self, record: Mapping[str, Any], rate: float) -> None:
        """Takes in the record of an epoch whose rate, without the plateau, was ``rate``."""
        found, is_first = self._monitored.number_of(record)
        if is_first:
            self._found = None
        if self._is_better(found):
            self._found, self._bad = found, 0
        else:
            self._bad += 1
        if self._cooling:
            self._cooling, self._bad = self._cooling - 1, 0
        if self._bad > self.patience:
            self._bad, self._cooling = 0, self.cooldown
            before, scale = self.lowered(rate), self.scale
            self.scale = scale * self.factor
            if before - self.lowered(rate) <= self.eps:
                self.scale = scale

    def _is_better(self, found: float) -> bool:
        """Whether a number is better than the best so far, by the threshold."""
        if isnan(found):
            return False
        sign = 1.0 if self._monitored.direction == "most" else -1.0
        if self._found is None:
            return sign * found > -inf
        limit = self._found + sign * self.threshold
        if self.threshold_mode == "rel":
            limit = self._found * (1.0 + sign * self.threshold)
        return sign * found > sign * limit


class _Lowered:
    """A schedule whose rates a plateau lowers."""

    def __init__(self, base: float | Callable[[int], float], plateau: ReduceOnPlateau) -> None:
        self.base, self.plateau = base, plateau

    def __call__(self, step: int) -> float:
        base = self.base
        return self.plateau.lowered(float(base(step) if callable(base) else base))

    def __repr__(self) -> str:
        return repr(self.base)


def _with_rates(optimizer: Optimizer, plateau: ReduceOnPlateau) -> Optimizer:
    """The optimizer, and optimizers within it, with rates that a plateau lowers.

    A schedule that this plateau lowered in an earlier run is unwrapped first, so that a rate is
    lowered once; those of other plateaus stay.
    """
    lr: Any = optimizer.lr
    own = lr.base if isinstance(lr, _Lowered) and lr.plateau is plateau else lr
    inner: dict[str, Any] = {
        field.name: _with_rates(value, plateau)
        for field in fields(optimizer)
        if isinstance(value := getattr(optimizer, field.name), Optimizer)
    }
    return replace(optimizer, lr=_Lowered(own, plateau), **inner)


def _base(optimizer: Optimizer) -> Callable[[int], float]:
    """The schedule that the optimizer of a plateau has without the plateau."""
    lr: Any = optimizer.lr
    base = lr.base
    return base if callable(base) else lambda step: float(base)
