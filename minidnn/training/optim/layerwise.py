"""Optimizers for large batches, whose steps are as long as a parameter's norm tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minidnn.graph.expression import Expression, sqrt, where
from minidnn.graph.symbolic import pointwise
from minidnn.training.arguments import check_number
from minidnn.training.optim.adaptive import Moments
from minidnn.training.optim.optimizer import Optimizer, Update, squared

__all__ = ["LAMB", "LARS"]


@dataclass(frozen=True, kw_only=True)
class LARS(Optimizer):
    """``v = momentum * v + lr * ratio * (g + weight_decay * p)`` and ``p -= v``, where ``ratio`` is
    ``trust * |p| / (|g| + weight_decay * |p|)``, or 1 if a norm is 0.

    With ``decay="weights"`` the ratio is 1 of biases and normalizations.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        momentum: by what the sum of steps decays.
        trust: the length of a step, as a part of the parameter's.

    Raises:
        GraphError: an argument is not valid.

    Source: You, Gitman and Ginsburg, arXiv:1708.03888.

    >>> optimizer = md.optim.LARS(1.0, weight_decay=1e-4, decay="weights")
    """

    momentum: float = 0.9
    trust: float = 0.001

    slots = ("momentum",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "momentum", self.momentum, 0, 1)
        check_number(self, "trust", self.trust, 0)

    def apply(self, update: Update) -> None:
        p, g, v = update.parameter, update.gradient, update.slots["momentum"]
        norms: list[Any] = [squared(p), squared(g)] if update.is_weight else []

        def moved(
            p: Expression, g: Expression, v: Expression, rate: Expression, *norms: Expression
        ) -> Expression:
            slope = g + update.decay * p if update.decay else g
            size = update.factor * rate
            if norms:
                own, other = map(sqrt, norms)
                ratio = float(self.trust) * own / (other + update.decay * own)
                size = size * where(own > 0.0, where(other > 0.0, ratio, 1.0), 1.0)
            return float(self.momentum) * v + size * slope

        new = update.become(v, moved, p, g, v, update.numbers["rate"], *norms)
        update.become(p, lambda p, v: p - v, p, new)


@dataclass(frozen=True, kw_only=True)
class LAMB(Moments):
    """``p -= lr * ratio * u``, where ``u = m / (sqrt(v) + eps) + weight_decay * p`` with the means
    of :class:`Adam`, and ``ratio`` is ``|p| / |u|``, or 1 if one of them is 0.

    With ``decay="weights"`` the ratio is 1 of biases and normalizations.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        betas: by what the two means decay in a step.
        eps: added to the root.

    Raises:
        GraphError: an argument is not valid.

    Source: You et al., arXiv:1904.00962.

    >>> optimizer = md.optim.LAMB(0.002, weight_decay=0.01, decay="weights")
    """

    eps: float = 1e-6
    weight_decay: float = 0.01

    def numbers(self, step: int) -> dict[str, float]:
        first, second = self.corrections(step)
        return {"rate": self.rate(step), "first": first, "second": second}

    def apply(self, update: Update) -> None:
        p, g, (m, v) = update.parameter, update.gradient, (update.slots[s] for s in self.slots)

        def direction(
            p: Expression,
            g: Expression,
            m: Expression,
            v: Expression,
            first: Expression,
            second: Expression,
        ) -> Expression:
            spread = sqrt(self.square(v, g) / second) + float(self.eps)
            return self.mean(m, g) / first / spread + update.decay * p

        corrections = (update.numbers["first"], update.numbers["second"])
        u = pointwise("Direction", direction, p, g, m, v, *corrections)
        norms: list[Any] = [squared(p), squared(u)] if update.is_weight else []

        def stepped(
            p: Expression, u: Expression, rate: Expression, *norms: Expression
        ) -> Expression:
            size = update.factor * rate
            if norms:
                own, other = map(sqrt, norms)
                size = size * where(own > 0.0, where(other > 0.0, own / other, 1.0), 1.0)
            return p - size * u

        update.become(p, stepped, p, u, update.numbers["rate"], *norms)
        update.become(m, lambda g, m: self.mean(m, g), g, m)
        update.become(v, lambda g, v: self.square(v, g), g, v)
