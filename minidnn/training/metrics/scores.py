"""Metrics of how scores rank a whole set, and of distances, with torchmetrics' names."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np

from minidnn.errors import GraphError, MiniDNNWarning, stack_level
from minidnn.training.metrics.metric import (
    Metric,
    OfClasses,
    States,
    Task,
    as_classes,
    as_labels,
    check_classes,
    check_range,
    counting,
    ratio,
)

__all__ = [
    "AUROC",
    "AveragePrecision",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "R2Score",
    "RootMeanSquaredError",
]


class Ranking(OfClasses):
    """The base of metrics of rankings, whose states are all scores and targets of the set."""

    best = "most"
    adds = False

    def __init__(
        self,
        task: Task = "multiclass",
        *,
        average: Literal["macro", "weighted", "none"] | None = "macro",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(task, ignore_index=ignore_index)
        if average not in ("macro", "weighted", "none", None):
            raise GraphError(
                f"{type(self).__name__}: average={average!r:.80}; valid are 'macro', 'weighted', "
                "'none' and None"
            )
        self.average = average

    def seen(self, output: Any, target: Any) -> tuple[Any, ...]:
        Metric.seen(self, output, target)
        if self.task == "multiclass":
            check_classes(self, output.shape)
        return (output,)

    def batch(self, output: np.ndarray, target: np.ndarray) -> States:
        if self.task != "multiclass":
            scores, target, keep = as_labels(self, output, target)
            return {"scores": scores, "target": target.astype(np.int64), "keep": keep}
        check_classes(self, output.shape)
        classes = output.shape[1]
        target = as_classes(self, target, (len(output), *output.shape[2:]), classes).reshape(-1)
        scores = np.moveaxis(output, 1, -1).reshape(-1, classes).astype(np.float64)
        keep = counting(self, target)
        check_range(self, target[keep], classes)
        is_class = target[keep][:, None] == np.arange(classes)
        return {
            "scores": scores[keep],
            "target": is_class.astype(np.int64),
            "keep": is_class | True,
        }

    def result(self, states: States) -> Any:
        scores, target, keep = (states[name] for name in ("scores", "target", "keep"))
        scores = _softmax(scores) if self.task == "multiclass" else scores
        by_class = np.array(
            [self.of_one(s[k], t[k]) for s, t, k in zip(scores.T, target.T, keep.T, strict=True)]
        )
        if self.task == "binary":
            return float(by_class[0])
        if self.average in (None, "none"):
            return by_class
        weight = (
            (target * keep).sum(0) if self.average == "weighted" else np.ones(len(by_class))
        ) * 1.0
        known = ~np.isnan(by_class)
        return float(ratio((weight * by_class)[known].sum(), weight[known].sum()))

    def of_one(self, scores: np.ndarray, target: np.ndarray) -> float:
        """The metric of one class, from its scores (S,) and targets 0 and 1."""
        raise GraphError(f"{type(self).__name__} does not define of_one(self, scores, target)")


def _softmax(scores: np.ndarray) -> np.ndarray:
    """Scores as probabilities of each sample, by which a class is ranked over samples."""
    with np.errstate(invalid="ignore"):
        if scores.size and (scores >= 0).all() and (scores <= 1).all():
            return scores
        raised = np.exp(scores - scores.max(1, keepdims=True, initial=-np.inf))
    return raised / raised.sum(1, keepdims=True)


class AUROC(Ranking):
    """The area under the ROC curve, the true positive rate over the false positive rate: how often
    a sample of the class has a larger score than one that is not.

    Args:
        task: "multiclass", each class against the others; "binary" or "multilabel".
        average: "macro", the mean of all classes; "weighted" by how many there are of each; None
            for an array with one of each class.
        ignore_index: targets of this class do not count.

    A class that all samples are of, or none, counts as 0, with a warning.

    Raises:
        GraphError: an argument is not valid.

    Source: torchmetrics, whose ``AUROC`` this is, with ``thresholds=None``.

    >>> auc = md.metrics.AUROC("binary").of(np.array([0.1, 0.4, 0.8]), np.array([0, 0, 1]))
    """

    def of_one(self, scores: np.ndarray, target: np.ndarray) -> float:
        if np.isnan(scores).any():
            return float("nan")
        positives = target.sum()
        if not positives or positives == len(target):
            warnings.warn(
                "AUROC: a class that all samples are of, or none, counts as 0",
                MiniDNNWarning,
                stacklevel=stack_level(),
            )
            return 0.0
        _, indices, counts = np.unique(scores, return_inverse=True, return_counts=True)
        ranks = np.cumsum(counts) - (counts - 1) / 2.0
        total = ranks[indices.reshape(-1)][target == 1].sum() - positives * (positives + 1) / 2.0
        return float(total / (positives * (len(target) - positives)))


class AveragePrecision(Ranking):
    """The mean of precisions at each score, weighted by how much recall grows there. Its arguments
    are those of :class:`AUROC`. A class of which there is none has NaN, and no part in the mean.

    Source: torchmetrics, whose ``AveragePrecision`` this is, with ``thresholds=None``.
    """

    def of_one(self, scores: np.ndarray, target: np.ndarray) -> float:
        if np.isnan(scores).any() or not target.sum():
            return float("nan")
        order = np.argsort(-scores, kind="stable")
        last = np.append(np.diff(scores[order]) != 0, True)
        right = np.cumsum(target[order])[last]
        precision = right / (np.flatnonzero(last) + 1)
        return float((np.diff(right, prepend=0) * precision).sum() / target.sum())


class Distance(Metric):
    """The base of means over all elements, whose states are a sum and a count."""

    best = "least"

    def batch(self, output: np.ndarray, target: np.ndarray) -> States:
        if output.shape != target.shape:
            raise GraphError(
                f"{type(self).__name__}: the output has shape {output.shape} and the target "
                f"{target.shape}; valid is one shape"
            )
        distances = self.between(output.astype(np.float64), target.astype(np.float64))
        return {"sum": np.array(distances.sum()), "count": np.array(distances.size)}

    def between(self, output: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The distance of each element."""
        raise GraphError(f"{type(self).__name__} does not define between(self, output, target)")

    def result(self, states: States) -> Any:
        return float(states["sum"] / states["count"])


class MeanAbsoluteError(Distance):
    """The mean of ``|output - target|`` over all elements of the set.

    Source: torchmetrics, whose ``MeanAbsoluteError`` this is.

    >>> mae = md.metrics.MeanAbsoluteError().of(np.ones(3), np.zeros(3))
    """

    def between(self, output: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.abs(output - target)


class MeanSquaredError(Distance):
    """The mean of ``(output - target)**2`` over all elements of the set.

    Source: torchmetrics, whose ``MeanSquaredError`` this is.

    >>> mse = md.metrics.MeanSquaredError().of(np.ones(3), np.zeros(3))
    """

    def between(self, output: np.ndarray, target: np.ndarray) -> np.ndarray:
        return (output - target) ** 2


class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean of ``(output - target)**2`` over all elements of the set, which is no
    mean of batches.

    Source: torchmetrics, whose ``MeanSquaredError(squared=False)`` this is.

    >>> rmse = md.metrics.RootMeanSquaredError().of(np.ones(3), np.zeros(3))
    """

    def result(self, states: States) -> Any:
        return float(np.sqrt(super().result(states)))


class R2Score(Metric):
    """How much of the spread of targets outputs explain: 1 is all, 0 none; the mean of outputs.

    Source: torchmetrics, whose ``R2Score`` this is.

    >>> r2 = md.metrics.R2Score().of(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]))
    """

    best = "most"
    adds = False  # accumulated sums of squares would lose digits

    def batch(self, output: np.ndarray, target: np.ndarray) -> States:
        if output.shape != target.shape:
            raise GraphError(
                f"R2Score: the output has shape {output.shape} and the target {target.shape}; "
                "valid is one shape"
            )
        both = (a.astype(np.float64).reshape(len(a), -1) for a in (output, target))
        return dict(zip(("output", "target"), both, strict=True))

    def result(self, states: States) -> Any:
        output, target = states["output"], states["target"]
        residual = ((target - output) ** 2).sum(0)
        spread = ((target - target.mean(0)) ** 2).sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(spread > 0, 1.0 - residual / spread, np.where(residual > 0, 0.0, 1.0))
        return float(each.mean())
