"""Gradient descent, with momentum."""

from __future__ import annotations

from dataclasses import dataclass

from minidnn.errors import GraphError
from minidnn.graph.expression import Expression
from minidnn.training.arguments import check_number
from minidnn.training.optim.optimizer import Optimizer, Update

__all__ = ["SGD"]


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """``v = momentum * v + g`` and ``p -= lr * v``, where ``g`` is the gradient and ``weight_decay
    * p``. As in PyTorch.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        momentum: by what the sum of gradients decays in a step.
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
        decay, factor, momentum = update.decay, update.factor, float(self.momentum)

        def slope(p: Expression, g: Expression) -> Expression:
            return g + decay * p if decay else g

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
