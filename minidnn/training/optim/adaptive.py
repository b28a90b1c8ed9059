"""Optimizers that divide by the root of mean squares of gradients; all as in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt as root
from typing import ClassVar

from minidnn.graph.expression import Expression, maximum, sqrt
from minidnn.training.arguments import check_number
from minidnn.training.optim.optimizer import Optimizer, Update

__all__ = ["Adam", "AdamW", "RMSprop"]


@dataclass(frozen=True, kw_only=True)
class Moments(Optimizer):
    """What optimizers with a mean of gradients and one of their squares share."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    slots: ClassVar[tuple[str, ...]] = ("mean", "square")

    def __post_init__(self) -> None:
        super().__post_init__()
        for i, beta in enumerate(self.betas):
            check_number(self, f"betas[{i}]", beta, 0, 1)
        check_number(self, "eps", self.eps, 0)

    def corrections(self, step: int) -> tuple[float, float]:
        """What the means of a step are divided by, since they began as 0."""
        first, second = self.betas
        return 1.0 - first ** (step + 1), 1.0 - second ** (step + 1)

    def mean(self, m: Expression, g: Expression) -> Expression:
        return float(self.betas[0]) * m + (1.0 - float(self.betas[0])) * g

    def square(self, v: Expression, g: Expression) -> Expression:
        return float(self.betas[1]) * v + (1.0 - float(self.betas[1])) * (g * g)


@dataclass(frozen=True, kw_only=True)
class Adam(Moments):
    """``p -= lr * m / (sqrt(v) + eps)``, with the means ``m`` of gradients and ``v`` of their
    squares, both corrected for their beginning. ``weight_decay * p`` is part of the gradient. As in
    PyTorch.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        betas: by what the two means decay in a step.
        eps: added to the root.
        amsgrad: whether the largest mean of squares so far takes the place of ``v``.

    Raises:
        GraphError: an argument is not valid.

    Source: Kingma and Ba, arXiv:1412.6980; Reddi, Kale and Kumar, arXiv:1904.09237.

    >>> optimizer = md.optim.Adam(1e-3)
    """

    amsgrad: bool = False

    slots = ("mean", "square", "largest")

    @property
    def kept(self) -> tuple[str, ...]:
        return self.slots if self.amsgrad else self.slots[:2]

    def numbers(self, step: int) -> dict[str, float]:
        first, second = self.corrections(step)
        rate = self.rate(step)
        return {"rate": rate, "size": rate / first, "root": root(second)}

    def slope(self, update: Update, p: Expression, g: Expression) -> Expression:
        """The gradient that means are taken of."""
        return g + update.decay * p if update.decay else g

    def shrunk(self, update: Update, p: Expression, rate: Expression) -> Expression:
        """The parameter that a step starts from."""
        return p

    def apply(self, update: Update) -> None:
        p, g = update.parameter, update.gradient
        m, v = (update.slots[name] for name in self.slots[:2])
        rate, size, correction = (update.numbers[name] for name in ("rate", "size", "root"))
        eps = float(self.eps)

        def stepped(
            p: Expression,
            m: Expression,
            v: Expression,
            rate: Expression,
            size: Expression,
            correction: Expression,
        ) -> Expression:
            step = m / (sqrt(v) / correction + eps)
            return self.shrunk(update, p, rate) - (update.factor * size) * step

        mean = update.become(m, lambda p, g, m: self.mean(m, self.slope(update, p, g)), p, g, m)
        square = update.become(v, lambda p, g, v: self.square(v, self.slope(update, p, g)), p, g, v)
        if self.amsgrad:
            most = update.slots["largest"]
            square = update.become(most, maximum, most, square)
        update.become(p, stepped, p, mean, square, rate, size, correction)


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """:class:`Adam` whose weights decay by themselves: ``p *= 1 - lr * weight_decay``. As in
    PyTorch.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        betas: by what the two means decay in a step.
        eps: added to the root.
        amsgrad: whether the largest mean of squares so far takes the place of ``v``.

    Raises:
        GraphError: an argument is not valid.

    Source: Loshchilov and Hutter, arXiv:1711.05101.

    >>> optimizer = md.optim.AdamW(1e-3, weight_decay=0.05, decay="weights")
    """

    weight_decay: float = 0.01

    def slope(self, update: Update, p: Expression, g: Expression) -> Expression:
        return g

    def shrunk(self, update: Update, p: Expression, rate: Expression) -> Expression:
        return p * (1.0 - (update.factor * update.decay) * rate) if update.decay else p


@dataclass(frozen=True, kw_only=True)
class RMSprop(Optimizer):
    """``p -= lr * g / (sqrt(v) + eps)``, where ``v = alpha * v + (1 - alpha) * g**2`` and
    ``weight_decay * p`` is part of the gradient. As in PyTorch.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        alpha: by what the mean of squares decays in a step.
        eps: added to the root.
        momentum: by what the sum of what is subtracted decays in a step, as in :class:`SGD`.
        centered: whether the variance takes the place of ``v``.

    Raises:
        GraphError: an argument is not valid.

    >>> optimizer = md.optim.RMSprop(0.01, momentum=0.9)
    """

    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    slots = ("square", "mean", "momentum")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "alpha", self.alpha, 0, 1)
        check_number(self, "eps", self.eps, 0)
        check_number(self, "momentum", self.momentum, 0, 1)

    @property
    def kept(self) -> tuple[str, ...]:
        wanted = (True, self.centered, bool(self.momentum))
        return tuple(slot for slot, is_kept in zip(self.slots, wanted, strict=True) if is_kept)

    def apply(self, update: Update) -> None:
        p, g, rate = update.parameter, update.gradient, update.numbers["rate"]
        states = [update.slots[name] for name in self.kept]
        alpha, momentum = float(self.alpha), float(self.momentum)

        def slope(p: Expression, g: Expression) -> Expression:
            return g + update.decay * p if update.decay else g

        def square(p: Expression, g: Expression, v: Expression) -> Expression:
            return alpha * v + (1.0 - alpha) * (slope(p, g) * slope(p, g))

        def mean(p: Expression, g: Expression, a: Expression) -> Expression:
            return alpha * a + (1.0 - alpha) * slope(p, g)

        def move(p: Expression, g: Expression, *kept: Expression) -> Expression:
            slots = dict(zip(self.kept, kept, strict=True))
            spread = square(p, g, slots["square"])
            if self.centered:
                now = mean(p, g, slots["mean"])
                spread = spread - now * now
            found = slope(p, g) / (sqrt(spread) + float(self.eps))
            return momentum * slots["momentum"] + found if momentum else found

        def stepped(
            rate: Expression, p: Expression, g: Expression, *kept: Expression
        ) -> Expression:
            return p - (update.factor * rate) * move(p, g, *kept)

        update.become(p, stepped, rate, p, g, *states)
        update.become(update.slots["square"], square, p, g, update.slots["square"])
        if self.centered:
            update.become(update.slots["mean"], mean, p, g, update.slots["mean"])
        if momentum:
            update.become(update.slots["momentum"], move, p, g, *states)
