"""Schedules that come back to where they were, and several schedules in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from minidnn.errors import GraphError
from minidnn.training.arguments import check_number, check_whole
from minidnn.training.optim.schedules import RateSchedule, wave

__all__ = ["CosineRestarts", "Cyclic", "InTurn"]


@dataclass(frozen=True)
class CosineRestarts(RateSchedule):
    """A learning rate that falls along half a wave, begins again at ``lr``, and so on.

    Args:
        lr: the rate that each wave begins with.
        period: steps of the first wave.
        grow: by what each wave is longer than the one before, a whole number.
        end: the rate that waves lead to.
        warmup: so many steps lead up to ``lr`` from near 0.

    Raises:
        GraphError: an argument is not valid.

    Source: Loshchilov and Hutter, arXiv:1608.03983.

    >>> lr = md.optim.CosineRestarts(0.1, period=1000, grow=2)
    """

    period: int
    grow: int = 1
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "period", self.period, 1)
        check_whole(self, "grow", self.grow, 1)
        check_number(self, "end", self.end, 0)

    def after(self, step: int) -> float:
        length = self.period
        if self.grow == 1:
            step %= length
        while step >= length:
            step, length = step - length, length * self.grow
        return wave(self.lr, self.end, step / length)


@dataclass(frozen=True)
class Cyclic(RateSchedule):
    """A learning rate that rises from ``lr`` to ``top`` and falls to ``lr`` again, both along
    straight lines, and so on.

    Args:
        lr: the lowest rate.
        top: the highest rate.
        up: steps that rising takes.
        down: steps that falling takes; None is as many.
        mode: what the height above ``lr`` becomes: "triangular" stays, "triangular2" is halved
            with each cycle, and "exp_range" is multiplied by ``factor`` in each step.
        factor: for "exp_range".
        warmup: so many steps lead up to ``lr`` from near 0.

    Raises:
        GraphError: an argument is not valid.

    Source: Smith, arXiv:1506.01186.

    >>> lr = md.optim.Cyclic(0.001, 0.01, up=2000, mode="triangular2")
    """

    top: float
    up: int = 2000
    down: int | None = None
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular"
    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "top", self.top, self.lr)
        check_whole(self, "up", self.up, 1)
        if self.down is not None:
            check_whole(self, "down", self.down, 1)
        check_number(self, "factor", self.factor, 0)
        if self.mode not in ("triangular", "triangular2", "exp_range"):
            raise GraphError(
                f"Cyclic: mode={self.mode!r:.80}; valid are 'triangular', 'triangular2' and "
                "'exp_range'"
            )

    def after(self, step: int) -> float:
        down = self.up if self.down is None else self.down
        cycle, place = divmod(step, self.up + down)
        part = place / self.up if place <= self.up else 1.0 - (place - self.up) / down
        height = (self.top - self.lr) * part
        if self.mode == "triangular2":
            height /= 2.0**cycle
        elif self.mode == "exp_range":
            height *= float(self.factor) ** step
        return self.lr + height


@dataclass(frozen=True)
class InTurn:
    """Several schedules one after another, as PyTorch's ``SequentialLR``.

    Args:
        schedules: learning rates, or functions from the number of a step, counted from 0 for each,
            to one.
        milestones: the steps at which the next one begins, one fewer than schedules.

    Raises:
        GraphError: an argument is not valid.

    >>> hold = md.optim.ConstantRate(0.1, warmup=100)
    >>> lr = md.optim.InTurn([hold, md.optim.LinearDecay(0.1, steps=1000)], [9000])
    """

    schedules: Sequence[float | Callable[[int], float]]
    milestones: Sequence[int]

    def __post_init__(self) -> None:
        given: Any = self.schedules
        if not isinstance(given, Sequence) or not given:
            raise GraphError(f"InTurn: schedules={given!r:.80}; valid is a sequence of schedules")
        for i, each in enumerate(given):
            if not callable(each):
                check_number(self, f"schedules[{i}]", each, 0)
        ends: Any = self.milestones
        if not isinstance(ends, Sequence) or len(ends) != len(given) - 1:
            raise GraphError(
                f"InTurn: milestones={ends!r:.80}; valid are {len(given) - 1} ints, one fewer than "
                "schedules"
            )
        for i, each in enumerate(ends):
            check_whole(self, f"milestones[{i}]", each, ends[i - 1] + 1 if i else 0)

    def __call__(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        place = sum(step >= each for each in self.milestones)
        schedule = self.schedules[place]
        begun = self.milestones[place - 1] if place else 0
        return float(schedule(step - begun) if callable(schedule) else schedule)
