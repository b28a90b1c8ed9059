"""Losses of numbers and of distributions; all as in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Any, Literal

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import expression as scalar
from minidnn.graph.scalar_functions import softplus
from minidnn.graph.symbolic import pointwise
from minidnn.training.arguments import check_number
from minidnn.training.losses.common import Loss, check_range, mean

__all__ = [
    "GaussianNLL",
    "HingeEmbedding",
    "KLDiv",
    "PoissonNLL",
    "SmoothL1",
    "SoftMargin",
]


@dataclass(frozen=True)
class SmoothL1(Loss):
    """The mean of ``d**2 / (2 * beta)`` where ``d = |output - target|`` is less than ``beta``, and
    of ``d - beta / 2`` elsewhere.

    Args:
        beta: the distance from which on a difference counts linearly; 0 makes it :class:`L1`.

    Source: Girshick, Fast R-CNN, arXiv:1504.08083.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.SmoothL1(), md.optim.SGD(0.1))
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "beta", self.beta, 0)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        beta = float(self.beta)

        def body(x: Any, t: Any) -> Any:
            d = abs(x - t)
            return scalar.where(d < beta, (0.5 / beta) * (d * d), d - 0.5 * beta) if beta else d

        return mean(self, pointwise("SmoothL1", body, output, target), sample_weight)


@dataclass(frozen=True)
class KLDiv(Loss):
    """``target * (log(target) - output)``: how far distributions are from those that targets are,
    where outputs are logarithms of probabilities. As in PyTorch.

    Args:
        log_target: whether targets are logarithms of probabilities, too.
        reduction: "mean" over all elements, PyTorch's default, or "batchmean": the sum divided by
            the number of samples, which is the divergence itself.

    Raises:
        GraphError: an argument is not valid.

    Source: Kullback and Leibler, Annals of Mathematical Statistics 22 (1951).

    >>> loss = md.losses.KLDiv(reduction="batchmean")
    """

    log_target: bool = False
    reduction: Literal["mean", "batchmean"] = "mean"

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "batchmean"):
            raise GraphError(
                f"KLDiv: reduction={self.reduction!r:.80}; valid are 'mean' and 'batchmean'"
            )

    def check(self, target: np.ndarray, output: Any) -> None:
        if not self.log_target:
            check_range(self, target, 0.0, float("inf"))

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        def body(x: Any, t: Any) -> Any:
            if self.log_target:
                return scalar.exp(t) * (t - x)
            inside = scalar.where(t > 0.0, t, 1.0)
            return scalar.where(t > 0.0, t * scalar.log(inside), 0.0) - t * x

        each = pointwise("KLDiv", body, output, target)
        if self.reduction == "batchmean" and len(each.shape) > 1:
            each = each.sum(tuple(range(1, len(each.shape))))
        return mean(self, each, sample_weight)


@dataclass(frozen=True)
class PoissonNLL(Loss):
    """Minus the logarithm of the probability of counts: ``exp(output) - target * output``.

    Args:
        log_input: whether outputs are logarithms of rates, or rates: ``output - target *
            log(output + eps)``.
        full: whether Stirling's approximation of ``log(target!)`` is added where targets are above
            1.
        eps: added to rates.

    Raises:
        GraphError: an argument is not valid.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.PoissonNLL(), md.optim.SGD(0.1))
    """

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_number(self, "eps", self.eps, 0)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        def body(x: Any, t: Any) -> Any:
            log = scalar.log
            found = scalar.exp(x) - t * x if self.log_input else x - t * log(x + float(self.eps))
            if not self.full:
                return found
            inside = scalar.where(t > 1.0, t, 1.0)
            stirling = t * log(inside) - t + 0.5 * log((2.0 * pi) * inside)
            return found + scalar.where(t > 1.0, stirling, 0.0)

        return mean(self, pointwise("PoissonNLL", body, output, target), sample_weight)


@dataclass(frozen=True)
class GaussianNLL(Loss):
    """Minus the logarithm of a normal density: ``(log(var) + (mean - target)**2 / var) / 2``, of
    two outputs, ``mean`` and ``var``. Give a trainer ``targets=``, the target's shape and dtype.

    Args:
        full: whether ``log(2 * pi) / 2`` is added.
        eps: variances are at least that; below, they have no gradient.

    Raises:
        GraphError: an argument is not valid, or there are not two outputs.

    >>> loss = md.losses.GaussianNLL()
    """

    full: bool = False
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_number(self, "eps", self.eps, 0)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        middle, var = several(self, output, "mean", "var")
        more = float(np.log(2 * np.pi) / 2) if self.full else 0.0

        def body(x: Any, v: Any, t: Any) -> Any:
            v = scalar.maximum(v, float(self.eps))
            return 0.5 * (scalar.log(v) + (x - t) * (x - t) / v) + more

        return mean(self, pointwise("GaussianNLL", body, middle, var, target), sample_weight)


@dataclass(frozen=True)
class SoftMargin(Loss):
    """The mean of ``log(1 + exp(-target * output))``, where targets are 1 or -1.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.SoftMargin(), md.optim.SGD(0.1))
    """

    def check(self, target: np.ndarray, output: Any) -> None:
        check_signs(self, target)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        each = pointwise("SoftMargin", lambda x, t: softplus(-(t * x)), output, target)
        return mean(self, each, sample_weight)


@dataclass(frozen=True)
class HingeEmbedding(Loss):
    """The mean of ``output`` where targets are 1, and of ``max(0, margin - output)`` where they are
    -1.

    Args:
        margin: the distance from which on pairs that differ do not count.

    Raises:
        GraphError: ``margin`` is no number.

    >>> loss = md.losses.HingeEmbedding()
    """

    margin: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "margin", self.margin, float("-inf"))

    def check(self, target: np.ndarray, output: Any) -> None:
        check_signs(self, target)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        def body(x: Any, t: Any) -> Any:
            apart = scalar.maximum(float(self.margin) - x, 0.0)
            return scalar.where(t > 0.0, x, apart)

        return mean(self, pointwise("HingeEmbedding", body, output, target), sample_weight)


def check_signs(owner: Loss, target: np.ndarray) -> None:
    """GraphError unless all targets are 1 or -1."""
    wrong = abs(target) != 1
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        raise GraphError(
            f"{type(owner).__name__}: target{list(place)} is {target[place]}; valid are 1 and -1"
        )


def several(owner: Loss, output: Any, *names: str) -> tuple[Any, ...]:
    """As many outputs as ``names``, given in this order or by these names."""
    if isinstance(output, dict) and set(names) == set(output):
        return tuple(output[name] for name in names)
    given = tuple(output.values()) if isinstance(output, dict) else output
    if not isinstance(given, (tuple, list)) or len(given) != len(names):
        count = len(given) if isinstance(given, (tuple, list)) else 1
        raise GraphError(
            f"{type(owner).__name__}: {count} outputs; valid are {len(names)}: {', '.join(names)}"
        )
    return tuple(given)
