"""Weights of samples, as a target beside the target."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any, TypeGuard

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import expression as scalar
from minidnn.graph.symbolic import pointwise
from minidnn.training.losses.common import CrossEntropy, Loss, aligned

__all__ = ["Weighted"]


@dataclass(frozen=True)
class Weighted(Loss):
    """A loss whose targets are pairs: the target, and a weight for each sample. Give a trainer
    ``targets=``, the shapes and dtypes of both. An index of no class makes the loss NaN.

    Args:
        loss: one of these losses.

    Raises:
        GraphError: ``loss`` is none.

    >>> loss = md.losses.Weighted(md.losses.CrossEntropy())
    >>> types = [((2,), "int64"), ((2,), "float32")]
    >>> trainer = md.Trainer(net, (2, 3, 32, 32), loss, md.optim.SGD(0.1), targets=types)
    """

    loss: Loss

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            raise GraphError(f"Weighted: loss={self.loss!r:.80}; valid is one of minidnn.losses")

    def __call__(self, output: Any, target: Any) -> Any:
        if not isinstance(target, (tuple, list)) or len(target) != 2:
            raise GraphError(
                "Weighted: one target; valid are two, the target and the weights: give the "
                "trainer targets=[(shape, dtype), ((N,), 'float32')]"
            )
        weighed: Any = self.loss
        found = weighed(output, target[0], sample_weight=target[1])
        if not _is_by_index(self.loss):
            return found
        index, ignored = target[0], self.loss.ignore_index
        wrong = np.logical_or(index < 0, index >= output.shape[1])
        if ignored is not None:
            wrong = np.logical_and(wrong, np.not_equal(index, ignored))

        def body(loss: Any, wrong: Any) -> Any:
            return scalar.where(wrong > 0.0, nan, loss)

        # A trainer does not look at targets whose types it is told.
        return pointwise("Checked", body, found, wrong.astype(output.dtype).max())

    def counted(self, output: Any, target: Any) -> Any:
        """By what a batch's mean counts among those of other batches: the sum of the weights, times
        those of the targets' classes if the loss has such."""
        weight = target[1]
        if not _is_by_index(self.loss):
            return weight.sum()
        classes, given = output.shape[1], self.loss.weight
        numbers = np.ones(classes) if given is None else np.array(given)
        if self.loss.ignore_index is not None and 0 <= self.loss.ignore_index < classes:
            numbers[self.loss.ignore_index] = 0.0
        index = target[0].reshape(target[0].shape[0], 1, *target[0].shape[1:])
        column = (1, classes, *(1 for _ in output.shape[2:]))
        here = np.equal(index, output._constant(np.arange(classes).reshape(column), "int64"))
        own = output._constant(numbers.reshape(column), output.dtype)
        chosen = pointwise("Own", lambda h, w: scalar.where(h > 0.0, w, 0.0), here, own).sum(1)
        return (chosen * aligned(self, weight, tuple(chosen.shape))).sum()


def _is_by_index(loss: Any) -> TypeGuard[CrossEntropy]:
    """Whether a loss takes indices of classes, and counts by weights of classes."""
    return isinstance(loss, CrossEntropy) and not loss.probabilities
