"""Gradient descent with momentum, and with steps that the history of each element scales.

All are as in PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from minidnn.errors import GraphError
from minidnn.graph.expression import Expression, maximum, minimum, sqrt, where
from minidnn.graph.scalar_functions import sign
from minidnn.training.arguments import check_number
from minidnn.training.optim.optimizer import Optimizer, Update, decayed

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Rprop",
]


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """``v = momentum * v + g`` and ``p -= lr * v``, where ``g`` is the gradient and ``weight_decay
    * p``. As in PyTorch.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        momentum: the decay of the sum of gradients in a step.
        nesterov: whether ``p -= lr * (g + momentum * v)`` instead.

    Raises:
        GraphError: an argument is not valid.

    >>> optimizer = md.optim.SGD(md.optim.Cosine(0.1, steps=1000), momentum=0.9, weight_decay=5e-4)
    """

    momentum: float = 0.0
    nesterov: bool = False

    slots = ("momentum",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "momentum", self.momentum, 0, 1)
        if self.nesterov and not self.momentum:
            raise GraphError("SGD: nesterov=True with momentum=0; valid is a momentum above 0")

    @property
    def kept(self) -> tuple[str, ...]:
        return self.slots if self.momentum else ()

    def apply(self, update: Update) -> None:
        p, g, rate = update.parameter, update.gradient, update.numbers["rate"]
        slope, factor, momentum = partial(decayed, update), update.factor, float(self.momentum)

        if not momentum:
            update.become(p, lambda p, g, r: p - (factor * r) * slope(p, g), p, g, rate)
            return
        v = update.slots["momentum"]

        def moved(p: Expression, g: Expression, v: Expression) -> Expression:
            return momentum * v + slope(p, g)

        new = update.become(v, moved, p, g, v)
        if not self.nesterov:
            update.become(p, lambda p, v, r: p - (factor * r) * v, p, new, rate)
            return

        def ahead(p: Expression, g: Expression, v: Expression, r: Expression) -> Expression:
            return p - (factor * r) * (slope(p, g) + momentum * v)

        update.become(p, ahead, p, g, new, rate)


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """``p -= lr * g / (sqrt(v) + eps)``, where ``v`` is the sum of squares of gradients and
    ``weight_decay * p`` is part of the gradient. As in PyTorch.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        lr_decay: the rate of a step, counted from 0, is divided by ``1 + step * lr_decay``.
        initial_accumulator_value: what the sum begins with.
        eps: added to the root.

    Raises:
        GraphError: an argument is not valid.

    Source: Duchi, Hazan and Singer, JMLR 12 (2011).

    >>> optimizer = md.optim.Adagrad(0.01)
    """

    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    slots = ("square",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lr_decay", "initial_accumulator_value", "eps"):
            check_number(self, name, getattr(self, name), 0)

    def numbers(self, step: int) -> dict[str, float]:
        return {"rate": self.rate(step) / (1.0 + step * float(self.lr_decay))}

    def apply(self, update: Update) -> None:
        p, g, v = update.parameter, update.gradient, update.slots["square"]
        begin = float(self.initial_accumulator_value)

        def total(p: Expression, g: Expression, v: Expression) -> Expression:
            return v + decayed(update, p, g) * decayed(update, p, g)

        def stepped(p: Expression, g: Expression, v: Expression, rate: Expression) -> Expression:
            spread = sqrt(v + begin if begin else v) + float(self.eps)
            return p - (update.factor * rate) * (decayed(update, p, g) / spread)

        new = update.become(v, total, p, g, v)
        update.become(p, stepped, p, g, new, update.numbers["rate"])


@dataclass(frozen=True, kw_only=True)
class Adadelta(Optimizer):
    """``p -= lr * d``, where ``d = g * sqrt(u + eps) / sqrt(v + eps)``, ``v`` is the mean of
    squares of gradients and ``u`` that of squares of earlier ``d``; ``weight_decay * p`` is part of
    the gradient. As in PyTorch.

    Args:
        lr: the learning rate, or a schedule; the paper's is 1.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        rho: the decay of the means in a step.
        eps: added under the roots.

    Raises:
        GraphError: an argument is not valid.

    Source: Zeiler, arXiv:1212.5701.

    >>> optimizer = md.optim.Adadelta(1.0)
    """

    rho: float = 0.9
    eps: float = 1e-6

    slots = ("square", "moved")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "rho", self.rho, 0, 1)
        check_number(self, "eps", self.eps, 0)

    def apply(self, update: Update) -> None:
        p, g, (v, u) = update.parameter, update.gradient, (update.slots[s] for s in self.slots)
        rho, eps = float(self.rho), float(self.eps)

        def square(p: Expression, g: Expression, v: Expression) -> Expression:
            return rho * v + (1.0 - rho) * (decayed(update, p, g) * decayed(update, p, g))

        def move(p: Expression, g: Expression, v: Expression, u: Expression) -> Expression:
            return decayed(update, p, g) * (sqrt(u + eps) / sqrt(v + eps))

        def moved(p: Expression, g: Expression, v: Expression, u: Expression) -> Expression:
            return rho * u + (1.0 - rho) * (move(p, g, v, u) * move(p, g, v, u))

        def stepped(
            p: Expression, g: Expression, v: Expression, u: Expression, rate: Expression
        ) -> Expression:
            return p - (update.factor * rate) * move(p, g, v, u)

        new = update.become(v, square, p, g, v)
        update.become(p, stepped, p, g, new, u, update.numbers["rate"])
        update.become(u, moved, p, g, new, u)


@dataclass(frozen=True, kw_only=True)
class Rprop(Optimizer):
    """Steps by the signs of gradients, whose sizes grow while an element's sign stays and shrink
    when it changes; for whole data sets as one batch. As in PyTorch.

    Args:
        lr: the size of the first step; a schedule matters only at first.
        weight_decay: only 0 is of use.
        decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        etas: the factors by which sizes shrink and grow.
        step_sizes: the least and the largest size.

    Raises:
        GraphError: an argument is not valid.

    Source: Riedmiller and Braun, ICNN 1993.

    >>> optimizer = md.optim.Rprop(0.01)
    """

    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50.0)

    slots = ("previous", "size")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "etas[0]", self.etas[0], 0, 1)
        check_number(self, "etas[1]", self.etas[1], 1)
        check_number(self, "step_sizes[0]", self.step_sizes[0], 0)
        check_number(self, "step_sizes[1]", self.step_sizes[1], self.step_sizes[0])

    def apply(self, update: Update) -> None:
        p, g, (before, size) = update.parameter, update.gradient, map(update.slots.get, self.slots)
        down, up = map(float, self.etas)
        least, most = map(float, self.step_sizes)

        def grown(
            p: Expression, g: Expression, b: Expression, size: Expression, rate: Expression
        ) -> Expression:
            same = decayed(update, p, g) * b
            factor = where(same > 0.0, up, where(same < 0.0, down, 1.0))
            begun = where(size > 0.0, size, update.factor * rate)
            return minimum(maximum(begun * factor, least), most)

        def kept(p: Expression, g: Expression, b: Expression) -> Expression:
            slope = decayed(update, p, g)
            return where(slope * b < 0.0, 0.0, slope)

        assert before is not None and size is not None
        new = update.become(size, grown, p, g, before, size, update.numbers["rate"])
        update.become(p, lambda p, g, b, s: p - sign(kept(p, g, b)) * s, p, g, before, new)
        update.become(before, kept, p, g, before)
