"""Metrics of classes, with torchmetrics' names, arguments and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from minidnn.errors import GraphError
from minidnn.training.arguments import check_integer, check_number
from minidnn.training.metrics.metric import (
    Average,
    Averaged,
    Counts,
    OfClasses,
    States,
    Task,
    as_classes,
    check_classes,
    ratio,
)

__all__ = [
    "Accuracy",
    "CohenKappa",
    "ConfusionMatrix",
    "F1Score",
    "FBetaScore",
    "JaccardIndex",
    "MatthewsCorrCoef",
    "Precision",
    "Recall",
    "Specificity",
]


class Accuracy(Averaged):
    """Which part was found rightly; with ``top_k``, among the k largest scores.

    "multiclass" outputs are scores (N, C, ...), and targets classes (N, ...) or probabilities for
    each class; "binary" outputs (N, ...) or (N, 1, ...), and targets 0 and 1; "multilabel" both
    (N, L, ...). If any score of the whole set of the latter two is not from 0 to 1, scores are
    logits, and their sigmoid is compared with the threshold.

    Args:
        task: "multiclass", "binary" or "multilabel".
        average: "micro" over all; "macro", the mean of all classes that there are; "weighted" by
            how many there are of each; None for an array with one of each class.
        threshold: scores above it are 1.
        ignore_index: targets of this class do not count.
        top_k: of how many of the largest scores the target must be one.

    Raises:
        GraphError: an argument is not valid.

    Source: torchmetrics, whose ``Accuracy`` this is.

    >>> metrics = {"top5": md.metrics.Accuracy(top_k=5)}
    >>> trainer = md.Trainer(
    ...     net, (2, 3, 32, 32), md.losses.CrossEntropy(), md.optim.SGD(0.1), metrics=metrics
    ... )
    """

    def __init__(
        self,
        task: Task = "multiclass",
        *,
        average: Average = "micro",
        threshold: float = 0.5,
        ignore_index: int | None = None,
        top_k: int = 1,
    ) -> None:
        super().__init__(task, average=average, threshold=threshold, ignore_index=ignore_index)
        check_integer(self, "top_k", top_k, 1)
        if top_k > 1 and task != "multiclass":
            raise GraphError(
                f"Accuracy: top_k={top_k}, task={task!r}; valid with task='multiclass' alone"
            )
        self.top_k = top_k

    def seen(self, output: Any, target: Any) -> tuple[Any, ...]:
        values = super().seen(output, target)
        return values if self.top_k == 1 else (output,)

    def batch(self, output: np.ndarray, target: np.ndarray) -> States:
        if self.top_k == 1:
            return super().batch(output, target)
        check_classes(self, output.shape)
        classes = output.shape[1]
        target = as_classes(self, target, (len(output), *output.shape[2:]), classes)
        # Ignored targets may be no valid index; they are clipped, and do not count below.
        index = np.clip(target, 0, classes - 1)[:, None].astype(np.int64)
        score = np.take_along_axis(output, index, 1)
        numbers = np.arange(classes).reshape(1, classes, *(1 for _ in output.shape[2:]))
        is_before = (output > score) | (np.isnan(output) & ~np.isnan(score))
        is_before |= ((output == score) | (np.isnan(output) & np.isnan(score))) & (numbers < index)
        is_among = is_before.sum(1) < self.top_k
        return self.confusions(np.where(is_among, index[:, 0], output.argmax(1)), target, classes)

    def rate(self, right: Counts, wrong: Counts, missed: Counts, apart: Counts) -> np.ndarray:
        if self.task == "multiclass":
            return ratio(right, right + missed)
        return ratio(right + apart, right + wrong + missed + apart)

    def counts_in_mean(self, right: Counts, wrong: Counts, missed: Counts) -> np.ndarray:
        if self.top_k > 1:
            return ((right + missed) > 0).astype(np.float64)
        return super().counts_in_mean(right, wrong, missed)


class Precision(Averaged):
    """Which part of what was found is right. Its arguments are those of :class:`Accuracy`, but for
    ``top_k``.

    Source: torchmetrics, whose ``Precision`` this is.
    """

    def rate(self, right: Counts, wrong: Counts, missed: Counts, apart: Counts) -> np.ndarray:
        return ratio(right, right + wrong)


class Recall(Averaged):
    """Which part of what there is was found. Its arguments are those of :class:`Accuracy`, but for
    ``top_k``.

    Source: torchmetrics, whose ``Recall`` this is.
    """

    def rate(self, right: Counts, wrong: Counts, missed: Counts, apart: Counts) -> np.ndarray:
        return ratio(right, right + missed)


class Specificity(Averaged):
    """Which part of what is not of a class was not found to be. Its arguments are those of
    :class:`Accuracy`, but for ``top_k``.

    Source: torchmetrics, whose ``Specificity`` this is.
    """

    def rate(self, right: Counts, wrong: Counts, missed: Counts, apart: Counts) -> np.ndarray:
        return ratio(apart, apart + wrong)


class FBetaScore(Averaged):
    """The harmonic mean of precision and recall, with recall ``beta`` times as important.

    Args:
        beta: how much more recall counts.
        task, average, threshold, ignore_index: as :class:`Accuracy` has them.

    Raises:
        GraphError: an argument is not valid.

    Source: torchmetrics, whose ``FBetaScore`` this is.

    >>> found = md.metrics.FBetaScore(2.0, average="macro").of(np.eye(3), np.array([0, 1, 1]))
    """

    def __init__(
        self,
        beta: float = 1.0,
        task: Task = "multiclass",
        *,
        average: Average = "micro",
        threshold: float = 0.5,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(task, average=average, threshold=threshold, ignore_index=ignore_index)
        check_number(self, "beta", beta, 0)
        self.beta = beta

    def rate(self, right: Counts, wrong: Counts, missed: Counts, apart: Counts) -> np.ndarray:
        more = float(self.beta) ** 2
        return ratio((1 + more) * right, (1 + more) * right + more * missed + wrong)


class F1Score(FBetaScore):
    """The harmonic mean of precision and recall. Its arguments are those of :class:`Accuracy`, but
    for ``top_k``; with the default average over all, it is the accuracy of classes.

    Source: torchmetrics, whose ``F1Score`` this is.
    """

    def __init__(self, task: Task = "multiclass", **options: Any) -> None:
        super().__init__(1.0, task, **options)


class JaccardIndex(Averaged):
    """The intersection of what was found and what there is over their union, as IoU is; the mean of
    classes.

    Args:
        task, threshold, ignore_index: as :class:`Accuracy` has them.
        average: as there; "macro" leaves out the ignored class.

    Raises:
        GraphError: an argument is not valid.

    Source: torchmetrics, whose ``JaccardIndex`` this is.

    >>> iou = md.metrics.JaccardIndex(ignore_index=255)
    """

    def __init__(
        self,
        task: Task = "multiclass",
        *,
        average: Average = "macro",
        threshold: float = 0.5,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(task, average=average, threshold=threshold, ignore_index=ignore_index)

    def rates(self, states: States) -> tuple[np.ndarray, ...]:
        rates = super().rates(states)
        if self._is_left_out(rates) and self.average == "micro":
            keep = np.arange(len(rates[0])) != self.ignore_index
            return tuple(each[keep] for each in rates)
        return rates

    def rate(self, right: Counts, wrong: Counts, missed: Counts, apart: Counts) -> np.ndarray:
        return ratio(right, right + wrong + missed)

    def counts_in_mean(self, right: Counts, wrong: Counts, missed: Counts) -> np.ndarray:
        weights = super().counts_in_mean(right, wrong, missed)
        if self._is_left_out((right,)):
            weights[self.ignore_index] = 0.0
        return weights

    def _is_left_out(self, rates: Sequence[np.ndarray]) -> bool:
        """Whether the ignored class is one of the classes, and so left out of the mean."""
        ignored = self.ignore_index
        applies = self.task == "multiclass" and ignored is not None
        return applies and 0 <= (ignored or 0) < len(rates[0])


class ConfusionMatrix(OfClasses):
    """How often each class, a row, was taken for each, a column: an array (C, C); of "binary"
    (2, 2), of "multilabel" (L, 2, 2).

    ``evaluate`` has it among its results; after epochs it is in ``trainer.tables``.

    Args:
        task, threshold, ignore_index: as :class:`Accuracy` has them.
        normalize: "true" divides by how many there are of each class, "pred" by how many were
            found, "all" by all; None counts.

    Raises:
        GraphError: an argument is not valid.

    Source: torchmetrics, whose ``ConfusionMatrix`` this is.

    >>> counts = md.metrics.ConfusionMatrix().of(np.eye(3), np.array([0, 1, 1]))
    """

    def __init__(
        self,
        task: Task = "multiclass",
        *,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        normalize: Literal["true", "pred", "all", "none"] | None = None,
    ) -> None:
        super().__init__(task, threshold=threshold, ignore_index=ignore_index)
        if normalize not in ("true", "pred", "all", "none", None):
            raise GraphError(
                f"ConfusionMatrix: normalize={normalize!r:.80}; valid are 'true', 'pred', 'all', "
                "'none' and None"
            )
        self.normalize = normalize

    def result(self, states: States) -> Any:
        counts = self.counts(states)
        matrix = counts[0] if self.task == "binary" else counts
        if self.normalize in (None, "none"):
            return matrix
        axes: Any = {"true": -1, "pred": -2, "all": (-2, -1)}[str(self.normalize)]
        matrix = matrix.astype(np.float64)
        return ratio(matrix, np.broadcast_to(matrix.sum(axes, keepdims=True), matrix.shape))


class CohenKappa(OfClasses):
    """How much better than by chance classes were found.

    Args:
        task: "multiclass" or "binary".
        threshold, ignore_index: as :class:`Accuracy` has them.
        weights: None counts each confusion alike, "linear" by how far classes are apart,
            "quadratic" by the square of that.

    Raises:
        GraphError: an argument is not valid.

    Source: torchmetrics, whose ``CohenKappa`` this is.

    >>> kappa = md.metrics.CohenKappa(weights="quadratic")
    """

    best = "most"

    def __init__(
        self,
        task: Literal["multiclass", "binary"] = "multiclass",
        *,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        weights: Literal["linear", "quadratic", "none"] | None = None,
    ) -> None:
        super().__init__(task, threshold=threshold, ignore_index=ignore_index)
        if weights not in ("linear", "quadratic", "none", None) or task not in (
            "multiclass",
            "binary",
        ):
            raise GraphError(
                f"CohenKappa: task={task!r:.80}, weights={weights!r:.80}; valid are 'multiclass' "
                "and 'binary', and 'linear', 'quadratic', 'none' and None"
            )
        self.weights = weights

    def result(self, states: States) -> Any:
        counts = self.counts(states).astype(np.float64)
        counts = counts[0] if self.task == "binary" else counts
        numbers = np.arange(len(counts))
        gap = np.abs(numbers[:, None] - numbers).astype(np.float64)
        cost = {"linear": gap, "quadratic": gap**2}.get(str(self.weights), gap != 0)
        expected = np.outer(counts.sum(1), counts.sum(0)) / max(counts.sum(), 1.0)
        total = (cost * expected).sum()
        return float(1.0 - (cost * counts).sum() / total) if total else float("nan")


class MatthewsCorrCoef(OfClasses):
    """The correlation of what was found and what there is. Its arguments are those of
    :class:`Accuracy`, but for ``average`` and ``top_k``.

    Source: torchmetrics, whose ``MatthewsCorrCoef`` this is.
    """

    best = "most"

    def result(self, states: States) -> Any:
        counts = self.counts(states).astype(np.float64)
        counts = counts if self.task == "multiclass" else counts.sum(0)
        true, predicted = counts.sum(1), counts.sum(0)
        right, total = np.trace(counts), counts.sum()
        if len(counts) == 2 and total and right in (0.0, total):
            return 1.0 if right else -1.0
        spread = np.sqrt((total**2 - (predicted**2).sum()) * (total**2 - (true**2).sum()))
        return float((right * total - (true * predicted).sum()) / spread) if spread else 0.0
