"""Optimizers whose steps depend on a parameter as a whole.

LARS and LAMB, for large batches, scale a step by the parameter's norm; Muon takes steps that are
orthogonal matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from math import sqrt as root
from typing import Any, Literal

from minidnn.errors import GraphError, did_you_mean
from minidnn.graph import expression as scalar
from minidnn.graph.expression import Expression, sqrt, where
from minidnn.graph.symbolic import pointwise
from minidnn.training.arguments import check_integer, check_number
from minidnn.training.optim.adaptive import Moments
from minidnn.training.optim.optimizer import Optimizer, Update, decayed, squared

__all__ = [
    "LAMB",
    "LARS",
    "Muon",
]


@dataclass(frozen=True, kw_only=True)
class LARS(Optimizer):
    """``v = momentum * v + lr * ratio * (g + weight_decay * p)`` and ``p -= v``, where ``ratio`` is
    ``trust * |p| / (|g| + weight_decay * |p|)``, or 1 if a norm is 0.

    With ``decay="weights"`` the ratio is 1 of biases and normalizations.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        momentum: the decay of the sum of steps.
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
            size = update.factor * rate
            if norms:
                own, other = map(sqrt, norms)
                ratio = float(self.trust) * own / (other + update.decay * own)
                size = size * where(own > 0.0, where(other > 0.0, ratio, 1.0), 1.0)
            return float(self.momentum) * v + size * decayed(update, p, g)

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
        betas: the decays of the two means in a step.
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

        def direction(*operands: Expression) -> Expression:
            p, g, m, v, first, second = operands
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


#: Prefix of the names of the numbers of ``Muon.others``.
_OTHERS = "others_"


@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """``p = p * (1 - lr * weight_decay) - lr * ratio * o``, where ``o`` is nearly the orthogonal
    matrix next to the mean of gradients, found by a polynomial. As in PyTorch, in float32.

    Weights with more than two axes count as matrices of the first axis and all others. Biases and
    what belongs to normalizations are trained by ``others``, and so should be embeddings and the
    last layer.

    Args:
        lr: the learning rate, or a schedule.
        weight_decay, decay, groups, clip_norm, clip_value: as :class:`Optimizer` has them.
        momentum: the decay of the mean of gradients in a step.
        nesterov: whether the gradient is mixed in once more.
        ns_coefficients: of the polynomial ``a * x + b * x**3 + c * x**5``.
        eps: the least norm that the mean is divided by.
        ns_steps: how often the polynomial is applied.
        adjust_lr_fn: the ratio: "original" or None, ``sqrt(max(1, rows / columns))``; or
            "match_rms_adamw", ``0.2 * sqrt(max(rows, columns))``, for :class:`AdamW`'s rates.
        others: the optimizer of parameters with fewer than two axes; without one they are refused.
        leave: patterns of names of weights that ``others`` trains, too.

    Raises:
        GraphError: an argument is not valid.

    Source: Jordan et al., Muon: An optimizer for hidden layers, 2024; Liu et al., arXiv:2502.16982.

    >>> rest = md.optim.AdamW(3e-4)
    >>> optimizer = md.optim.Muon(0.02, others=rest)
    """

    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    eps: float = 1e-7
    ns_steps: int = 5
    adjust_lr_fn: Literal["original", "match_rms_adamw"] | None = None
    others: Optimizer | None = None
    leave: Sequence[str] = ()

    slots = ("momentum",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "momentum", self.momentum, 0, 1)
        check_number(self, "eps", self.eps, 0)
        check_integer(self, "ns_steps", self.ns_steps, 1)
        if len(self.ns_coefficients) != 3:
            raise GraphError(
                f"Muon: ns_coefficients={self.ns_coefficients!r:.80}; valid are three numbers"
            )
        for i, each in enumerate(self.ns_coefficients):
            check_number(self, f"ns_coefficients[{i}]", each, float("-inf"))
        if self.adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise GraphError(
                f"Muon: adjust_lr_fn={self.adjust_lr_fn!r:.80}; valid are 'original', "
                "'match_rms_adamw' and None"
            )
        given: Any = self.others
        if given is not None and not isinstance(given, Optimizer):
            raise GraphError(f"Muon: others={given!r:.80}; valid is an optimizer of minidnn.optim")
        if given is not None and (given.clip_norm, given.clip_value) != (None, None):
            raise GraphError(
                "Muon: others has clip_norm or clip_value; valid is to give them to Muon, which "
                "clips all gradients"
            )
        if isinstance(self.leave, str) or (self.leave and self.others is None):
            raise GraphError(
                f"Muon: leave={self.leave!r:.80}, others={self.others!r:.80}; valid is a sequence "
                "of patterns, with an optimizer for what fits them"
            )

    @property
    def kept(self) -> tuple[str, ...]:
        rest = self.others.kept if self.others is not None else ()
        return tuple(dict.fromkeys((*self.slots, *rest)))

    def numbers(self, step: int) -> dict[str, float]:
        rest = self.others.numbers(step) if self.others is not None else {}
        return {"rate": self.rate(step)} | {f"{_OTHERS}{name}": n for name, n in rest.items()}

    def check_groups(self, names: Sequence[str]) -> None:
        super().check_groups(names)
        if self.others is not None:
            self.others.check_groups(names)
        for pattern in self.leave:
            if not any(fnmatchcase(name, pattern) for name in names):
                hint = did_you_mean(pattern, names) or f"; they are {', '.join(names):.300}"
                raise GraphError(f"Muon: leave={pattern!r} fits no parameter that is trained{hint}")

    def _is_own(self, update: Update) -> bool:
        """Whether Muon itself updates a parameter, and not ``others``."""
        name = update.parameter.name
        is_left = any(fnmatchcase(name, pattern) for pattern in self.leave)
        return update.parameter.type.rank >= 2 and not is_left

    def settle(self, update: Update) -> None:
        if self._is_own(update) or self.others is None:
            super().settle(update)
        else:
            self.others.settle(update)

    def apply(self, update: Update) -> None:
        if self._is_own(update):
            self._apply(update)
            return
        if self.others is None:
            raise GraphError(
                f"Muon: parameter {update.parameter.name!r} has shape {update.parameter.shape}; "
                "valid are at least two axes, or others=, an optimizer of such parameters"
            )
        rest = copy(update)
        rest.numbers = {
            name.removeprefix(_OTHERS): value
            for name, value in update.numbers.items()
            if name.startswith(_OTHERS)
        }
        self.others.apply(rest)

    def _apply(self, update: Update) -> None:
        """Defines the update of a matrix."""
        p, g, m = update.parameter, update.gradient, update.slots["momentum"]
        beta = float(self.momentum)

        def mean(g: Expression, m: Expression) -> Expression:
            return beta * m + (1.0 - beta) * g

        def ahead(g: Expression, m: Expression) -> Expression:
            return beta * mean(g, m) + (1.0 - beta) * g if self.nesterov else mean(g, m)

        rows, columns = p.shape[0], prod(p.shape[1:])
        step = self._orthogonal(pointwise("Ahead", ahead, g, m).reshape(rows, columns))
        ratio = root(max(1.0, rows / columns))
        if self.adjust_lr_fn == "match_rms_adamw":
            ratio = 0.2 * root(max(rows, columns))

        def stepped(p: Expression, o: Expression, rate: Expression) -> Expression:
            size = update.factor * rate
            kept = p * (1.0 - update.decay * size) if update.decay else p
            return kept - (ratio * size) * o

        update.become(p, stepped, p, step.reshape(*p.shape), update.numbers["rate"])
        update.become(m, mean, g, m)

    def _orthogonal(self, x: Any) -> Any:
        """The matrix with its singular values moved near 1, by the Newton-Schulz iteration."""
        a, b, c = map(float, self.ns_coefficients)
        tall = x.shape[0] > x.shape[1]
        x = x.swapaxes(0, 1) if tall else x

        def unit(x: Expression, squares: Expression) -> Expression:
            return x / scalar.maximum(scalar.sqrt(squares), float(self.eps))

        x = pointwise("Unit", unit, x, squared(x))
        for _ in range(self.ns_steps):
            gram = x @ x.swapaxes(0, 1)
            mixed = pointwise("Mixed", lambda g, gg: b * g + c * gg, gram, gram @ gram)
            x = pointwise("Mixed", lambda x, y: a * x + y, x, mixed @ x)
        return x.swapaxes(0, 1) if tall else x
