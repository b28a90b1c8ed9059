"""Losses of segmentation: how much regions overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.trace import apply
from minidnn.graph.types import FLOATS, TensorType
from minidnn.training.arguments import check_number, check_whole
from minidnn.training.losses.common import CrossEntropy, Function, Loss, check_range, mean

__all__ = ["Dice", "Tversky"]


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
            check_whole(self, "ignore_index", self.ignore_index, -(1 << 53))
            if self.multilabel:
                raise GraphError(
                    f"{type(self).__name__}: ignore_index={self.ignore_index} with "
                    "multilabel=True, whose targets are no indices; valid is one of them"
                )

    def _by_index(self, output: Any) -> bool:
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
            CrossEntropy(ignore_index=self.ignore_index).check(target, output)
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
        apart = 1.0 - (inside + smooth) / (below + smooth)
        if not self.background and classes > 1:
            apart = apart[..., 1:]
        if sample_weight is not None and self.batch:
            raise GraphError(
                f"{type(self).__name__}: sample_weight with batch=True; valid is batch=False, "
                "where samples are told apart"
            )
        return mean(self, apart, sample_weight)


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
