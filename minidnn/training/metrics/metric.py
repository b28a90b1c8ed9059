"""The base classes of metrics: numbers of a whole set, which are no means of its batches' numbers.

A metric reduces each batch to states, which are added or concatenated over batches, and computes
its result from them.  Metrics of classes keep a confusion matrix: how often each class was taken
for each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from minidnn.errors import GraphError
from minidnn.training.arguments import check_integer, check_number

__all__ = [
    "Averaged",
    "Counts",
    "Metric",
    "OfClasses",
    "States",
    "merged",
    "ratio",
]


#: What a metric keeps of the batches so far: arrays by name.
States = Mapping[str, np.ndarray]
#: A number for each class or label, such as its true positives.
Counts = np.ndarray


class Metric:
    """A number, or an array, of all outputs and targets of an epoch or of an evaluation.

    A subclass defines the states that it keeps of a batch, which are added up over batches or
    concatenated, and the result that it computes from them.

    >>> class Spread(md.metrics.Metric):
    ...     best = "least"
    ...     adds = False
    ...     def batch(self, output, target):
    ...         return {"distance": abs(output - target).reshape(len(output), -1).max(1)}
    ...     def result(self, states):
    ...         return float(np.median(states["distance"]))
    """

    #: Which way is better; None if neither is.
    best: ClassVar[Literal["least", "most"] | None] = None
    #: Whether the states of batches are added up; else they are concatenated along axis 0.
    adds: bool = True

    def seen(self, output: Any, target: Any) -> tuple[Any, ...]:
        """The values of a batch that go to the host, on symbols: by default the output."""
        if not hasattr(output, "dtype"):
            raise GraphError(
                f"{type(self).__name__}: the network has several outputs; valid are metrics by "
                'their names: metrics={"main": {...}}'
            )
        return (output,)

    def batch(self, output: Any, target: Any) -> States:
        """The states of a batch, from the values of :meth:`seen` and the target."""
        raise GraphError(f"{type(self).__name__} does not define batch(self, output, target)")

    def result(self, states: States) -> Any:
        """The metric, from the states of all batches: a number, or an array."""
        raise GraphError(f"{type(self).__name__} does not define result(self, states)")

    def taken(self, seen: Sequence[np.ndarray], target: np.ndarray, shape: Sequence[int]) -> States:
        """The states of a batch, from the values of :meth:`seen` for an output of this shape."""
        (output,) = seen
        return self.batch(output, target)

    def of(self, output: Any, target: Any) -> Any:
        """The metric of arrays."""
        return self.result(self.batch(np.asarray(output), np.asarray(target)))

    @property
    def name(self) -> str:
        """The metric's name where no other is given: that of its class, in snake case."""
        snake = re.sub(r"([a-z0-9])([A-Z])|([A-Z])(?=[A-Z][a-z])", r"\1\3_\2", type(self).__name__)
        return snake.lower()


def merged(metric: Metric, before: States | None, new: States) -> States:
    """Combines the states of the batches before with those of a new one."""
    if before is None:
        return {name: np.array(array) for name, array in new.items()}
    if metric.adds:
        return {name: before[name] + array for name, array in new.items()}
    return {name: np.concatenate([before[name], array]) for name, array in new.items()}


Task = Literal["multiclass", "binary", "multilabel"]
Average = Literal["micro", "macro", "weighted", "none"] | None
_TASKS = ("multiclass", "binary", "multilabel")
_AVERAGES = ("micro", "macro", "weighted", "none", None)


class OfClasses(Metric):
    """The base of metrics of classes: arguments, and confusion matrices as states.

    "multiclass": outputs are scores (N, C, ...) and targets classes (N, ...), or a probability for
    each class.  "binary": outputs are scores (N, ...) or (N, 1, ...) and targets 0 and 1;
    "multilabel": both are (N, L, ...).  If any score of the whole set is not from 0 to 1, they are
    logits, whose sigmoid is compared with the threshold.
    """

    def __init__(
        self,
        task: Task = "multiclass",
        *,
        threshold: float = 0.5,
        ignore_index: int | None = None,
    ) -> None:
        if task not in _TASKS:
            raise GraphError(
                f"{type(self).__name__}: task={task!r:.80}; valid are "
                f"{', '.join(map(repr, _TASKS))}"
            )
        check_number(self, "threshold", threshold, 0, 1)
        if ignore_index is not None:
            check_integer(self, "ignore_index", ignore_index, -(1 << 53))
        self.task, self.threshold, self.ignore_index = task, threshold, ignore_index

    def seen(self, output: Any, target: Any) -> tuple[Any, ...]:
        super().seen(output, target)
        if self.task != "multiclass":
            return (output,)
        check_classes(self, output.shape)
        return (output.argmax(1),)

    def taken(self, seen: Sequence[np.ndarray], target: np.ndarray, shape: Sequence[int]) -> States:
        if self.task != "multiclass" or seen[0].ndim == len(shape):
            return self.batch(seen[0], target)
        return self.confusions(seen[0], target, shape[1])

    def batch(self, output: np.ndarray, target: np.ndarray) -> States:
        if self.task == "multiclass":
            check_classes(self, output.shape)
            return self.confusions(output.argmax(1), target, output.shape[1])
        scores, target, keep = as_labels(self, output, target)
        inside = (scores >= 0) & (scores <= 1)
        with np.errstate(over="ignore"):
            sigmoid = 1.0 / (1.0 + np.exp(-scores))
        return {
            "counts": _matrices(scores > self.threshold, target, keep),
            "logits": _matrices(sigmoid > self.threshold, target, keep),
            "outside": np.array((keep & ~inside).sum()),
        }

    def confusions(self, found: np.ndarray, target: np.ndarray, classes: int) -> States:
        """The confusion matrix: how often each class, a row, was taken for each, a column."""
        target = as_classes(self, target, found.shape, classes)
        keep = counting(self, target)
        check_range(self, target[keep], classes)
        pairs = target[keep].astype(np.int64) * classes + found[keep]
        return {"counts": np.bincount(pairs, minlength=classes**2).reshape(classes, classes)}

    def counts(self, states: States) -> np.ndarray:
        """The confusion matrix (C, C), or (labels, 2, 2)."""
        return states["logits" if states.get("outside", 0) else "counts"]

    def rates(self, states: States) -> tuple[np.ndarray, ...]:
        """True positives, false positives, false negatives and true negatives of each class or
        label."""
        counts = self.counts(states).astype(np.float64)
        if self.task == "multiclass":
            hits = np.diag(counts)
            predicted, actual = counts.sum(0), counts.sum(1)
            return hits, predicted - hits, actual - hits, counts.sum() - predicted - actual + hits
        return counts[:, 1, 1], counts[:, 0, 1], counts[:, 1, 0], counts[:, 0, 0]


def _matrices(found: np.ndarray, target: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """The confusion matrices of all labels: (labels, 2, 2)."""
    counts = np.zeros((target.shape[1], 2, 2), np.int64)
    for label in range(target.shape[1]):
        counting = keep[:, label]
        pairs = target[:, label][counting].astype(np.int64) * 2 + found[:, label][counting]
        counts[label] = np.bincount(pairs, minlength=4).reshape(2, 2)
    return counts


def check_classes(owner: Metric, shape: Any) -> None:
    """GraphError unless the output's shape is one of scores of classes."""
    if len(shape) < 2 or shape[1] < 2:
        raise GraphError(
            f"{type(owner).__name__}: the output has shape {tuple(shape)}; valid for "
            "task='multiclass' is (N, classes, ...); task='binary' takes one score a sample"
        )


def as_classes(owner: Metric, target: np.ndarray, shape: Any, classes: int) -> np.ndarray:
    """Targets as classes: the most probable ones, if they are probabilities."""
    if target.shape == (*shape[:1], classes, *shape[1:]):
        target = target.argmax(1)
    if target.shape != tuple(shape) or target.dtype.kind not in "iub":
        raise GraphError(
            f"{type(owner).__name__}: the target is {target.dtype} of shape {target.shape}; valid "
            f"are indices of classes of shape {tuple(shape)}, or a probability for each of the "
            f"{classes} classes"
        )
    return target


def counting(owner: OfClasses, target: np.ndarray) -> np.ndarray:
    """The mask of the targets that are not of the ignored class."""
    if owner.ignore_index is None:
        return np.ones(target.shape, bool)
    return np.asarray(target != owner.ignore_index)


def check_range(owner: Metric, target: np.ndarray, classes: int) -> None:
    """GraphError if a target is no index of a class."""
    if target.size and not (target.min() >= 0 and target.max() < classes):
        raise GraphError(
            f"{type(owner).__name__}: targets go from {target.min()} to {target.max()}; valid are "
            f"indices from 0 to {classes - 1} of classes, and ignore_index"
        )


def as_labels(
    owner: Any, output: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, targets, and the mask of those that count, each of shape (samples, labels)."""
    if owner.task == "binary":
        if output.size != target.size:
            raise _shape_error(owner, output, target, "as many elements each")
        output, target = output.reshape(-1, 1), target.reshape(-1, 1)
    else:
        if output.shape != target.shape or output.ndim < 2:
            raise _shape_error(owner, output, target, "(N, labels, ...) for both")
        output, target = (np.moveaxis(a, 1, -1).reshape(-1, a.shape[1]) for a in (output, target))
    keep = counting(owner, target)
    wrong = keep & (target != 0) & (target != 1)
    if wrong.any():
        raise GraphError(
            f"{type(owner).__name__}: a target is {target[wrong][0]}; valid are 0 and 1, and "
            "ignore_index"
        )
    return output.astype(np.float64), target, keep


def _shape_error(owner: Metric, output: np.ndarray, target: np.ndarray, valid: str) -> GraphError:
    """The error of an output and a target whose shapes do not fit."""
    return GraphError(
        f"{type(owner).__name__}: the output has shape {output.shape} and the target "
        f"{target.shape}; valid is {valid}"
    )


def ratio(part: Any, whole: Any) -> np.ndarray:
    """The quotient, and 0 where the divisor is 0."""
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=np.asarray(whole) != 0)


class Averaged(OfClasses):
    """The base of metrics that are a rate of each class, averaged over classes."""

    best = "most"

    def __init__(
        self,
        task: Task = "multiclass",
        *,
        average: Average = "micro",
        threshold: float = 0.5,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(task, threshold=threshold, ignore_index=ignore_index)
        if average not in _AVERAGES:
            raise GraphError(
                f"{type(self).__name__}: average={average!r:.80}; valid are "
                f"{', '.join(map(repr, _AVERAGES))}"
            )
        self.average = average

    def rate(self, right: Counts, wrong: Counts, missed: Counts, apart: Counts) -> np.ndarray:
        """The rate of each class, from its true positives, false positives, false negatives and
        true negatives."""
        raise GraphError(f"{type(self).__name__} does not define rate(self, ...)")

    def result(self, states: States) -> Any:
        rates = self.rates(states)
        if self.task == "binary":
            return float(self.rate(*rates)[0])
        if self.average == "micro":
            return float(self.rate(*(each.sum(keepdims=True) for each in rates))[0])
        each = self.rate(*rates)
        right, wrong, missed, _ = rates
        if self.average == "weighted":
            return float(ratio(((right + missed) * each).sum(), (right + missed).sum()))
        if self.average == "macro":
            weights = self.counts_in_mean(right, wrong, missed)
            return float(ratio((weights * each).sum(), weights.sum()))
        return each

    def counts_in_mean(self, right: Counts, wrong: Counts, missed: Counts) -> np.ndarray:
        """The weights of classes in a mean: 0 for those that neither occur nor were found, but 1
        for all labels."""
        if self.task == "multilabel":
            return np.ones(right.shape)
        return ((right + wrong + missed) > 0).astype(np.float64)
