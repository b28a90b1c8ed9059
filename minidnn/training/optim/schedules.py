"""Schedules: the learning rate as a function of the number of steps that were made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from math import cos, pi
from typing import Any, Literal

from minidnn.errors import GraphError
from minidnn.training.arguments import check_integer, check_number

__all__ = [
    "ConstantRate",
    "Cosine",
    "CosineRestarts",
    "Cyclic",
    "Exponential",
    "InTurn",
    "LinearDecay",
    "MultiStep",
    "OneCycle",
    "Polynomial",
    "RateSchedule",
    "StepDecay",
]


@dataclass(frozen=True)
class RateSchedule:
    """The learning rate as a function of the number of steps made. A subclass defines
    :meth:`after`.

    Args:
        lr: the rate that the warm-up leads to.
        warmup: the number of steps that lead up to ``lr`` from near 0.

    Raises:
        GraphError: an argument is not valid.

    >>> from dataclasses import dataclass
    ... @dataclass(frozen=True)
    >>> class Root(md.optim.RateSchedule):
    ...     def after(self, steps):
    ...         return self.lr / (1 + steps) ** 0.5
    """

    lr: float
    _: KW_ONLY
    warmup: int = 0

    def __post_init__(self) -> None:
        check_number(self, "lr", self.lr, 0)
        check_integer(self, "warmup", self.warmup, 0)

    def __call__(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / (self.warmup + 1)
        return self.after(step - self.warmup)

    def after(self, step: int) -> float:
        """The learning rate of a step after the warm-up."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConstantRate(RateSchedule):
    """One learning rate for ever.

    Args:
        lr: the rate.
        warmup: the number of steps that lead up to ``lr`` from near 0.

    >>> optimizer = md.optim.SGD(md.optim.ConstantRate(0.1, warmup=100))
    """

    def after(self, step: int) -> float:
        return self.lr


@dataclass(frozen=True)
class StepDecay(RateSchedule):
    """A learning rate that falls by steps.

    Args:
        lr: the rate at first.
        every: the number of steps after which it falls.
        factor: what it is multiplied by then.
        warmup: the number of steps that lead up to ``lr`` from near 0.

    >>> lr = md.optim.StepDecay(0.1, every=3000)
    """

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "every", self.every, 1)
        check_number(self, "factor", self.factor, 0)

    def after(self, step: int) -> float:
        return self.lr * float(self.factor) ** (step // self.every)


@dataclass(frozen=True)
class MultiStep(RateSchedule):
    """A learning rate that falls at given steps.

    Args:
        lr: the rate at first.
        milestones: the steps after which it falls, counted from the end of the warm-up.
        factor: what it is multiplied by at each.
        warmup: the number of steps that lead up to ``lr`` from near 0.

    Raises:
        GraphError: an argument is not valid.

    >>> lr = md.optim.MultiStep(0.1, [30 * 500, 60 * 500, 80 * 500])
    """

    milestones: Sequence[int]
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "factor", self.factor, 0)
        if not isinstance(self.milestones, Sequence) or isinstance(self.milestones, str):
            raise GraphError(
                f"MultiStep: milestones={self.milestones!r:.80}; valid is a sequence of ints"
            )
        for i, step in enumerate(self.milestones):
            check_integer(self, f"milestones[{i}]", step, 0)

    def after(self, step: int) -> float:
        return self.lr * float(self.factor) ** sum(step >= each for each in self.milestones)


@dataclass(frozen=True)
class Exponential(RateSchedule):
    """A learning rate that is multiplied by one factor over and over.

    Args:
        lr: the rate at first.
        factor: what it is multiplied by in ``every`` steps.
        every: the steps that this takes; an epoch's make it PyTorch's ``ExponentialLR``, and
            smooth within an epoch.
        warmup: the number of steps that lead up to ``lr`` from near 0.

    Raises:
        GraphError: an argument is not valid.

    >>> lr = md.optim.Exponential(0.1, 0.97, every=500)
    """

    factor: float
    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "factor", self.factor, 0)
        check_integer(self, "every", self.every, 1)

    def after(self, step: int) -> float:
        return self.lr * float(self.factor) ** (step / self.every)


@dataclass(frozen=True)
class _Ending(RateSchedule):
    """The base of schedules from ``lr`` to ``end`` in ``steps`` steps, the warm-up included."""

    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "steps", self.steps, self.warmup + 1)
        check_number(self, "end", self.end, 0)

    def after(self, step: int) -> float:
        return self.at(min(1.0, step / (self.steps - self.warmup)))

    def at(self, part: float) -> float:
        """The learning rate when that part of the steps, from 0 to 1, is done."""
        raise NotImplementedError


@dataclass(frozen=True)
class LinearDecay(_Ending):
    """A learning rate that falls along a straight line.

    Args:
        lr: the rate at first.
        steps: in all, the warm-up included.
        end: the rate at the end.
        warmup: the number of steps that lead up to ``lr`` from near 0.

    >>> optimizer = md.optim.SGD(md.optim.LinearDecay(0.1, steps=1000, warmup=100))
    """

    def at(self, part: float) -> float:
        return self.lr + (self.end - self.lr) * part


@dataclass(frozen=True)
class Polynomial(_Ending):
    """A learning rate that falls as a power of what is left of the steps.

    Args:
        lr: the rate at first.
        steps: in all, the warm-up included.
        end: the rate at the end.
        power: the exponent; 1 makes it :class:`LinearDecay`.
        warmup: the number of steps that lead up to ``lr`` from near 0.

    Raises:
        GraphError: an argument is not valid.

    >>> lr = md.optim.Polynomial(0.01, steps=4000, power=0.9)
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "power", self.power, 0)

    def at(self, part: float) -> float:
        return self.end + (self.lr - self.end) * (1.0 - part) ** float(self.power)


@dataclass(frozen=True)
class Cosine(_Ending):
    """A learning rate that falls along half a wave.

    Args:
        lr: the rate at first.
        steps: in all, the warm-up included.
        end: the rate at the end.
        warmup: the number of steps that lead up to ``lr`` from near 0.

    Source: Loshchilov and Hutter, arXiv:1608.03983.

    >>> lr = md.optim.Cosine(0.1, steps=4000, warmup=200)
    """

    def at(self, part: float) -> float:
        return wave(self.lr, self.end, part)


@dataclass(frozen=True)
class OneCycle(RateSchedule):
    """A learning rate that rises from ``lr / start`` to ``lr`` and falls to ``lr / start / last``,
    both along half a wave.

    Args:
        lr: the largest rate.
        steps: after the warm-up.
        rise: the part of the steps that rising takes.
        start: the largest rate divided by the first.
        last: the first rate divided by the last.
        warmup: the number of steps that lead up to ``lr`` from near 0.

    Raises:
        GraphError: an argument is not valid.

    Source: Smith and Topin, arXiv:1708.07120.

    >>> optimizer = md.optim.AdamW(md.optim.OneCycle(0.01, steps=1000))
    """

    steps: int
    rise: float = 0.3
    start: float = 25.0
    last: float = 1e4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "steps", self.steps, 2)
        check_number(self, "rise", self.rise, 0, 1)
        check_number(self, "start", self.start, 1)
        check_number(self, "last", self.last, 1)

    def after(self, step: int) -> float:
        top, end = self.rise * self.steps - 1, self.steps - 1
        if step < top:
            return wave(self.lr / self.start, self.lr, step / top)
        part = min(1.0, (step - top) / (end - top)) if end > top else 1.0
        return wave(self.lr, self.lr / self.start / self.last, part)


def wave(begin: float, end: float, part: float) -> float:
    """The number at a part of half a cosine wave from ``begin`` to ``end``."""
    return end + (begin - end) * (1 + cos(pi * part)) / 2


@dataclass(frozen=True)
class CosineRestarts(RateSchedule):
    """A learning rate that falls along half a wave, begins again at ``lr``, and so on.

    Args:
        lr: the rate that each wave begins with.
        period: steps of the first wave.
        grow: the length of each wave divided by that of the one before, an integer.
        end: the rate that waves lead to.
        warmup: the number of steps that lead up to ``lr`` from near 0.

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
        check_integer(self, "period", self.period, 1)
        check_integer(self, "grow", self.grow, 1)
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
        warmup: the number of steps that lead up to ``lr`` from near 0.

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
        check_integer(self, "up", self.up, 1)
        if self.down is not None:
            check_integer(self, "down", self.down, 1)
        check_number(self, "factor", self.factor, 0)
        if self.mode not in ("triangular", "triangular2", "exp_range"):
            raise GraphError(
                f"Cyclic: mode={self.mode!r:.80}; valid are 'triangular', 'triangular2' and "
                "'exp_range'"
            )

    def after(self, step: int) -> float:
        down = self.up if self.down is None else self.down
        cycle, position = divmod(step, self.up + down)
        part = position / self.up if position <= self.up else 1.0 - (position - self.up) / down
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
            check_integer(self, f"milestones[{i}]", each, ends[i - 1] + 1 if i else 0)

    def __call__(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        index = sum(step >= each for each in self.milestones)
        schedule = self.schedules[index]
        start = self.milestones[index - 1] if index else 0
        return float(schedule(step - start) if callable(schedule) else schedule)
