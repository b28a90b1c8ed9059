"""Optimizers that divide by means of squares of gradients: RMSprop, Adam and its kin, and Lion.

All are as in PyTorch, and Lion is as in its paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from math import sqrt as root
from typing import ClassVar

from minidnn.graph.expression import Expression, maximum, sqrt, where
from minidnn.graph.ir import Value
from minidnn.graph.scalar_functions import sign
from minidnn.training.arguments import check_number
from minidnn.training.optim.optimizer import Optimizer, Update, decayed

__all__ = [
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "NAdam",
    "RAdam",
    "RMSprop",
]


@dataclass(frozen=True, kw_only=True)
class Moments(Optimizer):
    """The base of optimizers that keep a mean of gradients and one of their squares."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    slots: ClassVar[tuple[str, ...]] = ("mean", "square")

    def __post_init__(self) -> None:
        super().__post_init__()
        for i, beta in enumerate(self.betas):
            check_number(self, f"betas[{i}]", beta, 0, 1)
        check_number(self, "eps", self.eps, 0)

    def corrections(self, step: int) -> tuple[float, float]:
        """The bias corrections: divisors of the two means in a step, since these began as 0."""
        first, second = self.betas
        return 1.0 - first ** (step + 1), 1.0 - second ** (step + 1)

    def mean(self, m: Expression, g: Expression) -> Expression:
        """The new mean of gradients, from the old one and a gradient."""
        return float(self.betas[0]) * m + (1.0 - float(self.betas[0])) * g

    def square(self, v: Expression, g: Expression) -> Expression:
        """The new mean of squares, from the old one and a gradient."""
        return float(self.betas[1]) * v + (1.0 - float(self.betas[1])) * (g * g)

    def slope(self, update: Update, p: Expression, g: Expression) -> Expression:
        """The gradient that the means are taken of, with the weight decay if that is part of it."""
        return decayed(update, p, g)

    def means(self, update: Update) -> tuple[Value, Value]:
        """Updates both means; returns their new values."""
        p, g = update.parameter, update.gradient
        m, v = update.slots["mean"], update.slots["square"]
        return (
            update.become(m, lambda p, g, m: self.mean(m, self.slope(update, p, g)), p, g, m),
            update.become(v, lambda p, g, v: self.square(v, self.slope(update, p, g)), p, g, v),
        )


@dataclass(frozen=True, kw_only=True)
class Adam(Moments):
    """``p -= lr * m / (sqrt(v) + eps)``, with the means ``m`` of gradients and ``v`` of their
    squares, both corrected for their beginning. ``weight_decay * p`` is part of the gradient. As in
    PyTorch.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        betas: the decays of the two means in a step.
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

    def shrunk(self, update: Update, p: Expression, rate: Expression) -> Expression:
        """The parameter that a step starts from, after a decoupled weight decay."""
        return p

    def apply(self, update: Update) -> None:
        p = update.parameter
        rate, size, correction = (update.numbers[name] for name in ("rate", "size", "root"))
        eps = float(self.eps)

        def stepped(*operands: Expression) -> Expression:
            p, m, v, rate, size, correction = operands
            step = m / (sqrt(v) / correction + eps)
            return self.shrunk(update, p, rate) - (update.factor * size) * step

        mean, square = self.means(update)
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
        betas: the decays of the two means in a step.
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
        alpha: the decay of the mean of squares in a step.
        eps: added to the root.
        momentum: the decay of the sum of steps, as in :class:`SGD`.
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

        slope = partial(decayed, update)

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


@dataclass(frozen=True, kw_only=True)
class _Decoupled(Moments):
    """The base of optimizers whose weight decay is part of the gradient, or decoupled from it."""

    decoupled_weight_decay: bool = False

    def slope(self, update: Update, p: Expression, g: Expression) -> Expression:
        return g if self.decoupled_weight_decay else decayed(update, p, g)

    def shrunk(self, update: Update, p: Expression, rate: Expression) -> Expression:
        """The parameter that a step starts from."""
        if not update.decay or not self.decoupled_weight_decay:
            return p
        return p * (1.0 - (update.factor * update.decay) * rate)


@cache
def _products(beta: float, decay: float) -> tuple[float, ...]:
    """The products of NAdam's momenta up to each step, until they are negligible beside 1."""
    products = [1.0]
    while products[-1] > 1e-20 and len(products) < 1 << 20:
        products.append(products[-1] * _momentum(beta, decay, len(products)))
    return tuple(products[1:])


def _momentum(beta: float, decay: float, step: int) -> float:
    """NAdam's momentum in a step, counted from 1."""
    return beta * (1.0 - 0.5 * 0.96 ** (step * decay))


@dataclass(frozen=True, kw_only=True)
class NAdam(_Decoupled):
    """:class:`Adam` with Nesterov's momentum, which itself grows from step to step. As in PyTorch.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        betas: the decays of the two means in a step.
        eps: added to the root.
        momentum_decay: how fast the momentum grows to the first of ``betas``.
        decoupled_weight_decay: whether weights decay by themselves, as in :class:`AdamW`.

    Raises:
        GraphError: an argument is not valid.

    Source: Dozat, Incorporating Nesterov Momentum into Adam, 2016.

    >>> optimizer = md.optim.NAdam(2e-3)
    """

    momentum_decay: float = 4e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "momentum_decay", self.momentum_decay, 0)

    def numbers(self, step: int) -> dict[str, float]:
        beta, decay = float(self.betas[0]), float(self.momentum_decay)
        rate, products = self.rate(step), _products(beta, decay)
        product = products[step] if step < len(products) else 0.0
        now, ahead = (_momentum(beta, decay, step + n) for n in (1, 2))
        return {
            "rate": rate,
            "by_gradient": rate * (1.0 - now) / (1.0 - product),
            "by_mean": rate * ahead / (1.0 - product * ahead),
            "root": root(self.corrections(step)[1]),
        }

    def apply(self, update: Update) -> None:
        p, g = update.parameter, update.gradient

        def stepped(*operands: Expression) -> Expression:
            p, g, m, v, rate, by_gradient, by_mean, correction = operands
            spread = sqrt(v) / correction + float(self.eps)
            step = by_gradient * (self.slope(update, p, g) / spread) + by_mean * (m / spread)
            return self.shrunk(update, p, rate) - update.factor * step

        mean, square = self.means(update)
        update.become(p, stepped, p, g, mean, square, *update.numbers.values())


@dataclass(frozen=True, kw_only=True)
class RAdam(_Decoupled):
    """:class:`Adam` whose first steps go by the mean of gradients alone, until the variance of the
    mean of squares is known; then a factor corrects it. As in PyTorch.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        betas: the decays of the two means in a step.
        eps: added to the root.
        decoupled_weight_decay: whether weights decay by themselves, as in :class:`AdamW`.

    Raises:
        GraphError: an argument is not valid.

    Source: Liu et al., arXiv:1908.03265.

    >>> optimizer = md.optim.RAdam(1e-3)
    """

    def numbers(self, step: int) -> dict[str, float]:
        first, second = self.corrections(step)
        rate, beta = self.rate(step), float(self.betas[1])
        most = 2.0 / (1.0 - beta) - 1.0 if beta < 1 else float("inf")
        length = most - 2.0 * (step + 1) * beta ** (step + 1) / second if beta < 1 else 0.0
        rectified = 0.0
        if length > 5.0:
            above = (length - 4.0) * (length - 2.0) * most
            rectified = root(above / ((most - 4.0) * (most - 2.0) * length)) * root(second)
        return {"rate": rate, "size": rate / first, "rectified": rectified}

    def apply(self, update: Update) -> None:
        p = update.parameter

        def stepped(*operands: Expression) -> Expression:
            p, m, v, rate, size, rectified = operands
            spread = rectified / (sqrt(v) + float(self.eps))
            step = m * where(rectified > 0.0, spread, 1.0)
            return self.shrunk(update, p, rate) - (update.factor * size) * step

        mean, square = self.means(update)
        update.become(p, stepped, p, mean, square, *update.numbers.values())


@dataclass(frozen=True, kw_only=True)
class Adamax(Moments):
    """``p -= lr * m / u``, with the mean ``m`` of gradients, corrected for its beginning, and ``u =
    max(beta * u, |g| + eps)``; ``weight_decay * p`` is part of the gradient. As in PyTorch.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        betas: the decays of ``m`` and ``u`` in a step.
        eps: added to sizes of gradients.

    Raises:
        GraphError: an argument is not valid.

    Source: Kingma and Ba, arXiv:1412.6980.

    >>> optimizer = md.optim.Adamax(2e-3)
    """

    slots = ("mean", "largest")

    def numbers(self, step: int) -> dict[str, float]:
        return {"size": self.rate(step) / self.corrections(step)[0]}

    def apply(self, update: Update) -> None:
        p, g, (m, u) = update.parameter, update.gradient, (update.slots[s] for s in self.slots)

        slope = partial(self.slope, update)

        def largest(p: Expression, g: Expression, u: Expression) -> Expression:
            return maximum(float(self.betas[1]) * u, abs(slope(p, g)) + float(self.eps))

        def stepped(p: Expression, m: Expression, u: Expression, size: Expression) -> Expression:
            return p - (update.factor * size) * (m / u)

        mean = update.become(m, lambda p, g, m: self.mean(m, slope(p, g)), p, g, m)
        most = update.become(u, largest, p, g, u)
        update.become(p, stepped, p, mean, most, update.numbers["size"])


@dataclass(frozen=True, kw_only=True)
class Lion(Moments):
    """``p -= lr * (sign(c) + weight_decay * p)``, where ``c`` is the first of ``betas`` of the mean
    ``m`` and the rest of the gradient, and ``m`` decays by the second.

    Args:
        lr: the learning rate, or a schedule; a third to a tenth of :class:`AdamW`'s.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        betas: see above.
        eps: does nothing.

    Raises:
        GraphError: an argument is not valid.

    Source: Chen et al., arXiv:2302.06675.

    >>> optimizer = md.optim.Lion(1e-4, weight_decay=0.1)
    """

    betas: tuple[float, float] = (0.9, 0.99)

    slots = ("mean",)

    def apply(self, update: Update) -> None:
        p, g, m = update.parameter, update.gradient, update.slots["mean"]
        slow = float(self.betas[1])

        def stepped(p: Expression, g: Expression, m: Expression, rate: Expression) -> Expression:
            size = update.factor * rate
            kept = p * (1.0 - update.decay * size) if update.decay else p
            return kept - size * sign(self.mean(m, g))

        update.become(p, stepped, p, g, m, update.numbers["rate"])
        update.become(m, lambda g, m: slow * m + (1.0 - slow) * g, g, m)
