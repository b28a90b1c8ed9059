"""Losses of classes besides :class:`~minidnn.training.losses.CrossEntropy`.

:class:`Tversky` and :class:`Dice`, for segmentation, measure how much regions overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.scalar_functions import softplus
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import apply
from minidnn.graph.types import FLOATS, TensorType
from minidnn.training.arguments import check_integer, check_number
from minidnn.training.losses.common import (
    CrossEntropy,
    Function,
    Loss,
    accuracy,
    check_indices,
    check_range,
    chosen,
    keep_weight,
    mean,
)

__all__ = [
    "NLL",
    "Dice",
    "Focal",
    "MultiLabelSoftMargin",
    "MultiMargin",
    "SigmoidFocal",
    "Tversky",
]


@dataclass(frozen=True, init=False)
class NLL(CrossEntropy):
    """:class:`CrossEntropy` of outputs that are logarithms of probabilities already, such as those
    of :class:`minidnn.layers.LogSoftmax`. As in PyTorch.

    Args:
        weight: a number for each class; the mean is taken by these weights.
        ignore_index: targets of this class do not count.

    Raises:
        GraphError: an argument is not valid.

    >>> net = md.Sequential(L.Flatten(), L.Linear(64, 10), L.LogSoftmax(1))
    >>> trainer = md.Trainer(net, (2, 1, 8, 8), md.losses.NLL(), md.optim.SGD(0.1))
    """

    label_smoothing: ClassVar[float] = 0.0  # type: ignore[misc]
    probabilities: ClassVar[bool] = False  # type: ignore[misc]

    def __init__(
        self, weight: Sequence[float] | None = None, ignore_index: int | None = None
    ) -> None:
        _set(self, weight=weight, ignore_index=ignore_index)
        self.__post_init__()

    def form(self, floats: bool, shape: Sequence[int], output: TensorType) -> Loss:
        """The loss itself: it takes indices alone."""
        return self

    def _logs(self, output: Any) -> Any:
        return output


@dataclass(frozen=True, init=False)
class Focal(CrossEntropy):
    """:class:`CrossEntropy` in which a class whose probability is ``p`` counts by ``(1 - p) **
    gamma``, so that what is classified well hardly counts.

    Args:
        gamma: the exponent; 0 makes it :class:`CrossEntropy`.
        weight: a number for each class, the paper's alpha; the mean is taken by these weights.
        ignore_index: targets of this class do not count.

    Raises:
        GraphError: an argument is not valid.

    Source: Lin et al., arXiv:1708.02002.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.Focal(), md.optim.SGD(0.1))
    """

    gamma: float = 2.0

    label_smoothing: ClassVar[float] = 0.0  # type: ignore[misc]
    probabilities: ClassVar[bool] = False  # type: ignore[misc]

    def __init__(
        self,
        gamma: float = 2.0,
        weight: Sequence[float] | None = None,
        ignore_index: int | None = None,
    ) -> None:
        _set(self, gamma=gamma, weight=weight, ignore_index=ignore_index)
        check_number(self, "gamma", gamma, 0)
        self.__post_init__()

    def form(self, floats: bool, shape: Sequence[int], output: TensorType) -> Loss:
        """The loss itself: it takes indices alone."""
        return self

    def _factor(self, log: Any) -> Any:
        return powered(-scalar.expm1(log), float(self.gamma))


def _set(owner: Any, **values: Any) -> None:
    """Sets attributes of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(owner, name, value)


def powered(x: Any, exponent: float) -> Any:
    """A power of a number of at least 0, by products where the exponent is a small integer."""
    if not exponent.is_integer() or exponent > 8:
        return x**exponent
    product: Any = 1.0
    for _ in range(int(exponent)):
        product = x * product
    return product


@dataclass(frozen=True)
class SigmoidFocal(Loss):
    """:class:`BinaryCrossEntropy` in which each element counts by ``(1 - p) ** gamma``, where ``p``
    is the probability that the sigmoid of the output gives to the target. The mean over all, as
    ``torchvision.ops.sigmoid_focal_loss`` has it.

    Args:
        alpha: what positive targets count, where negative ones count ``1 - alpha``; -1 for no such
            weights.
        gamma: the exponent.

    Raises:
        GraphError: an argument is not valid.

    Source: Lin et al., arXiv:1708.02002.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.SigmoidFocal(), md.optim.SGD(0.1))
    """

    alpha: float = 0.25
    gamma: float = 2.0

    def __post_init__(self) -> None:
        if self.alpha != -1:
            check_number(self, "alpha", self.alpha, 0, 1)
        check_number(self, "gamma", self.gamma, 0)

    def check(self, target: np.ndarray, output: TensorType) -> None:
        check_range(self, target, 0.0, 1.0)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        alpha = float(self.alpha)

        def body(x: Any, t: Any) -> Any:
            p, q = scalar.sigmoid(x), scalar.sigmoid(-x)
            wrong = p * (1.0 - t) + q * t
            found = ((1.0 - t) * x + softplus(-x)) * powered(wrong, float(self.gamma))
            return found if alpha < 0 else (alpha * t + (1.0 - alpha) * (1.0 - t)) * found

        return mean(self, pointwise("SigmoidFocal", body, output, target), sample_weight)


@dataclass(frozen=True)
class MultiLabelSoftMargin(Loss):
    """The mean over samples and classes of the binary cross entropy of logits (N, C) and targets
    from 0 to 1. As in PyTorch.

    Args:
        weight: a number for each class.

    Raises:
        GraphError: ``weight`` is not valid.

    >>> trainer = md.Trainer(
    ...     net, (2, 3, 32, 32), md.losses.MultiLabelSoftMargin(), md.optim.SGD(0.1)
    ... )
    """

    weight: Sequence[float] | None = None

    def __post_init__(self) -> None:
        keep_weight(self, self.weight)

    def check(self, target: np.ndarray, output: TensorType) -> None:
        check_range(self, target, 0.0, 1.0)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        def body(x: Any, t: Any) -> Any:
            return (1.0 - t) * x + softplus(-x)

        each = pointwise("MultiLabelSoftMargin", body, output, target)
        if self.weight is not None:
            each = each * _row(self, output, -1)
        return mean(self, each.mean(-1), sample_weight)


@dataclass(frozen=True)
class MultiMargin(Loss):
    """The sum over the other classes of ``max(0, margin - output[target] + output[other]) ** p``,
    divided by the number of classes. As in PyTorch.

    Args:
        p: 1 or 2.
        margin: by how much the target's output should be above others.
        weight: a number for each class.

    Raises:
        GraphError: an argument is not valid.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.MultiMargin(), md.optim.SGD(0.1))
    """

    p: int = 1
    margin: float = 1.0
    weight: Sequence[float] | None = None

    metrics: ClassVar[Mapping[str, Function]] = {"accuracy": accuracy}

    def __post_init__(self) -> None:
        if self.p not in (1, 2):
            raise GraphError(f"MultiMargin: p={self.p!r:.80}; valid are 1 and 2")
        check_number(self, "margin", self.margin, float("-inf"))
        keep_weight(self, self.weight)

    def target(self, output: TensorType) -> TensorType:
        if output.rank != 2:
            raise GraphError(f"MultiMargin: the output is {output}; valid is a shape (N, classes)")
        return TensorType(output.shape[:1], "int64")

    def check(self, target: np.ndarray, output: TensorType) -> None:
        check_indices(self, target, output.shape[1])

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        classes = output.shape[1]
        numbers = output._constant(np.arange(classes)[None], "int64")
        here = np.equal(target.reshape(-1, 1), numbers)
        own = pointwise("Own", chosen, here, output)
        weight: Any = [] if self.weight is None else [_row(self, output, 1)]
        if weight:
            weight = [pointwise("Own", chosen, here, *weight).sum(1, keepdims=True)]

        def body(h: Any, x: Any, own: Any, *weight: Any) -> Any:
            over = scalar.maximum(float(self.margin) - own + x, 0.0)
            found = over if self.p == 1 else over * over
            return scalar.where(h > 0.0, 0.0, found * weight[0] if weight else found)

        each = pointwise("MultiMargin", body, here, output, own.sum(1, keepdims=True), *weight)
        return mean(self, each.sum(1) / float(classes), sample_weight)


def _row(owner: Any, output: Any, axis: int) -> Any:
    """The weights of classes as a constant that broadcasts along the last axis."""
    if len(owner.weight) != output.shape[axis]:
        raise GraphError(
            f"{type(owner).__name__}: weight has {len(owner.weight)} numbers; valid is one for "
            f"each of the {output.shape[axis]} classes"
        )
    return output._constant(np.asarray(owner.weight), output.dtype)


@dataclass(frozen=True)
class Tversky(Loss):
    """``1 - (i + s) / (i + alpha * fp + beta * fn + s)``, the mean over samples and classes: ``i``
    is the sum of probabilities where targets are, ``fp`` of those where they are not, ``fn`` of
    what is missing of them, and ``s`` half of ``smooth``.

    Outputs are logits (N, C, ...). Targets are indices of classes, int64 (N, ...), and
    probabilities the softmax; with ``multilabel``, or of one channel, targets are numbers from 0 to
    1 of the output's shape, and probabilities the sigmoid.

    Args:
        alpha: what false positives count.
        beta: what false negatives count.
        multilabel: whether a pixel may be of several classes, or of none.
        smooth: added above and below the line, so that a class that is nowhere counts as found.
        batch: whether sums go over the whole batch, and not over each sample.
        background: whether the first of several classes counts.
        ignore_index: pixels of this class do not count.

    Raises:
        GraphError: an argument is not valid.

    Source: Salehi, Erdogmus and Gholipour, arXiv:1706.05721.

    >>> net = md.Sequential(L.Conv2d(3, 5, 1))
    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.Tversky(), md.optim.SGD(0.1))
    """

    alpha: float = 0.3
    beta: float = 0.7
    multilabel: bool = False
    smooth: float = 1e-5
    batch: bool = False
    background: bool = True
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        check_number(self, "alpha", self.alpha, 0)
        check_number(self, "beta", self.beta, 0)
        check_number(self, "smooth", self.smooth, 0)
        if self.ignore_index is not None:
            check_integer(self, "ignore_index", self.ignore_index, -(1 << 53))
            if self.multilabel:
                raise GraphError(
                    f"{type(self).__name__}: ignore_index={self.ignore_index} with "
                    "multilabel=True, whose targets are no indices; valid is one of them"
                )

    def _by_index(self, output: Any) -> bool:
        """Whether targets are indices of classes, and not numbers in the output's shape."""
        return not self.multilabel and output.shape[1] > 1

    def target(self, output: TensorType) -> TensorType:
        if output.rank < 3 or output.dtype not in FLOATS:
            raise GraphError(
                f"{type(self).__name__}: the output is {output}; valid is a float dtype and a "
                "shape (N, classes, ...)"
            )
        if not self._by_index(output):
            if self.ignore_index is not None:
                raise GraphError(
                    f"{type(self).__name__}: ignore_index={self.ignore_index} with the output "
                    f"{output} of one channel; valid is one of several classes"
                )
            return output
        return TensorType((output.shape[0], *output.shape[2:]), "int64")

    def check(self, target: np.ndarray, output: TensorType) -> None:
        if self._by_index(output):
            check_indices(self, target, output.shape[1], self.ignore_index)
        else:
            check_range(self, target, 0.0, 1.0)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        classes = output.shape[1]
        if self._by_index(output):
            found = apply(ops.Softmax(1), output)
            index = target.reshape(target.shape[0], 1, *target.shape[1:])
            column = np.arange(classes).reshape(1, classes, *(1 for _ in output.shape[2:]))
            is_class = np.equal(index, output._constant(column, "int64"))
            if self.ignore_index is not None:
                counts = np.not_equal(index, self.ignore_index)
                is_class = np.logical_and(is_class, counts)
                found = found * counts.astype(output.dtype)
            wanted = is_class.astype(output.dtype)
        else:
            found, wanted = apply(ops.Sigmoid(), output), target
        axes = tuple(range(2, len(output.shape)))
        axes = (0, *axes) if self.batch else axes
        inside, all_found, all_wanted = (each.sum(axes) for each in (found * wanted, found, wanted))
        smooth, alpha, beta = float(self.smooth) / 2, float(self.alpha), float(self.beta)
        below = inside * (1.0 - alpha - beta) + alpha * all_found + beta * all_wanted
        distance = 1.0 - (inside + smooth) / (below + smooth)
        if not self.background and classes > 1:
            distance = distance[..., 1:]
        if sample_weight is not None and self.batch:
            raise GraphError(
                f"{type(self).__name__}: sample_weight with batch=True; valid is batch=False, "
                "where samples are told apart"
            )
        return mean(self, distance, sample_weight)


@dataclass(frozen=True)
class Dice(Tversky):
    """``1 - (2 * i + smooth) / (p + t + smooth)``, the mean over samples and classes: ``p`` and
    ``t`` are the sums of probabilities and of targets, and ``i`` of their products.

    Outputs and targets are those of :class:`Tversky`.

    Args:
        multilabel: whether a pixel may be of several classes, or of none.
        smooth: added above and below the line, so that a class that is nowhere counts as found.
        batch: whether sums go over the whole batch, and not over each sample.
        background: whether the first of several classes counts.
        ignore_index: pixels of this class do not count.

    Raises:
        GraphError: an argument is not valid.

    Source: Sudre et al., arXiv:1707.03237.

    >>> net = md.Sequential(L.Conv2d(3, 5, 1))
    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.Dice(), md.optim.SGD(0.1))
    """

    alpha: ClassVar[float] = 0.5  # type: ignore[misc]
    beta: ClassVar[float] = 0.5  # type: ignore[misc]

    metrics: ClassVar[Mapping[str, Function]] = {}
