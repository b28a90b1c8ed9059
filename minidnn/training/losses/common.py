"""The base class of losses, the losses that most networks are trained with, and sample weights.

A loss is called on symbols, an output of the network and a target, with NumPy's functions; any
function of that kind is a loss, too.  The mean is taken over all that counts.  Weights of samples
are a target beside the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from math import nan, prod
from typing import Any, ClassVar, TypeGuard

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import apply
from minidnn.graph.types import FLOATS, TensorType
from minidnn.training.arguments import check_integer, check_number

__all__ = [
    "L1",
    "MSE",
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Huber",
    "Loss",
    "Weighted",
]


def aligned(caller: object, sample_weight: Any, shape: tuple[int, ...]) -> Any:
    """Weights with axes of size 1 appended, so that they broadcast with a shape.

    Args:
        caller: the loss, for errors.
        sample_weight: a number for each sample, (N,), or also for each of the first further axes.
        shape: of the values that they weight.
    """
    axes = tuple(sample_weight.shape)
    if not axes or axes != shape[: len(axes)]:
        raise GraphError(
            f"{type(caller).__name__}: sample_weight has shape {axes}; valid is ({shape[0]},), a "
            f"number for each sample, or more of the first axes of {shape}"
        )
    return sample_weight.reshape(*axes, *(1 for _ in shape[len(axes) :]))


def mean(caller: object, each: Any, sample_weight: Any = None) -> Any:
    """The mean of all elements; with weights, the weighted mean."""
    if sample_weight is None:
        return each.mean()
    weight = aligned(caller, sample_weight, tuple(each.shape))
    return (each * weight).sum() / (weight.sum() * float(prod(each.shape) // prod(weight.shape)))


#: A function of output and target on symbols.
Function = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Loss:
    """A loss of one output.  A subclass defines ``__call__`` on symbols.

    Those here also take ``sample_weight``, a number for each sample, (N,), or for each of more of
    the output's first axes, and give the mean by these weights.

    >>> class Relative(md.losses.Loss):
    ...     def __call__(self, output, target):
    ...         return (abs(output - target) / (1.0 + abs(target))).mean()
    """

    #: Measures, by name, that a trainer takes besides the loss by default.
    metrics: ClassVar[Mapping[str, Function]] = {}

    def __call__(self, output: Any, target: Any) -> Any:
        raise GraphError(f"{type(self).__name__} does not define __call__(self, output, target)")

    def target(self, output: TensorType) -> TensorType:
        """The type of the target for an output of this type."""
        return output

    def check(self, target: np.ndarray, output: TensorType) -> None:
        """GraphError if a value of the target is not valid; its shape and dtype are checked."""

    def form(self, floats: bool, shape: Sequence[int], output: TensorType) -> Loss:
        """The loss for targets of floats, or of integers, of this shape, if it takes those, too."""
        return self

    def counted(self, output: Any, target: Any) -> Any:
        """The weight of a batch's mean among those of other batches, a number on symbols; None if
        it is the number of samples."""
        return None


@dataclass(frozen=True)
class MSE(Loss):
    """The mean of ``(output - target)**2``.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.MSE(), md.optim.SGD(0.1))
    """

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        each = pointwise("SquaredError", lambda x, t: (x - t) * (x - t), output, target)
        return mean(self, each, sample_weight)


@dataclass(frozen=True)
class L1(Loss):
    """The mean of ``|output - target|``.

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.L1(), md.optim.SGD(0.1))
    """

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        each = pointwise("AbsoluteError", lambda x, t: abs(x - t), output, target)
        return mean(self, each, sample_weight)


@dataclass(frozen=True)
class Huber(Loss):
    """The mean of ``d**2 / 2`` where ``d = |output - target|`` is at most ``delta``, and of
    ``delta * (d - delta / 2)`` elsewhere.

    Args:
        delta: the distance from which on a difference counts linearly.

    Source: Huber, Annals of Mathematical Statistics 35 (1964).

    >>> trainer = md.Trainer(net, (2, 3, 32, 32), md.losses.Huber(0.5), md.optim.SGD(0.1))
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "delta", self.delta, 0)

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        def body(x: Any, t: Any) -> Any:
            d, delta = abs(x - t), float(self.delta)
            return scalar.where(d <= delta, 0.5 * (d * d), delta * (d - 0.5 * delta))

        return mean(self, pointwise("Huber", body, output, target), sample_weight)


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """The mean of ``-(positive_weight * target * log(p) + (1 - target) * log(1 - p))``, where ``p``
    is the sigmoid of the output: outputs are logits, targets are numbers from 0 to 1 of the
    output's shape.

    Args:
        positive_weight: the factor of the loss of positive targets, one number or one for each
            element of the output's last axis.

    Raises:
        GraphError: the argument is not valid.

    >>> loss = md.losses.BinaryCrossEntropy(positive_weight=3.0)
    """

    positive_weight: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        given: Any = self.positive_weight
        if isinstance(given, (int, float)):
            check_number(self, "positive_weight", given, 0)
            return
        numbers = np.asarray(given)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iuf" or not numbers.size:
            numbers = np.full(1, -1.0)
        if not (numbers >= 0).all() or not np.isfinite(numbers).all():
            raise GraphError(
                f"BinaryCrossEntropy: positive_weight={given!r:.80}; valid is a number of at least "
                "0, or one for each element of the output's last axis"
            )
        object.__setattr__(self, "positive_weight", tuple(numbers.tolist()))

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        def body(x: Any, t: Any, positive: Any) -> Any:
            # log(1 + exp(-x)); from 40 on the 1 changes nothing even in float64.
            softplus = scalar.where(x < -40.0, -x, scalar.log1p(scalar.exp(-x)))
            return (1.0 - t) * x + (1.0 + (positive - 1.0) * t) * softplus

        weight: Any = self.positive_weight
        if not isinstance(weight, (int, float)):
            weight = np.asarray(weight, np.float32)
        each = pointwise("BinaryCrossEntropy", body, output, target, weight)
        return mean(self, each, sample_weight)

    def check(self, target: np.ndarray, output: TensorType) -> None:
        check_range(self, target, 0.0, 1.0)


@dataclass(frozen=True)
class Correct:
    """The accuracy: the part whose largest output is that of the target's class.

    Args:
        ignore_index: targets of this class do not count.
    """

    ignore_index: int | None = None
    best: ClassVar = "most"

    def __call__(self, output: Any, target: Any) -> Any:
        predicted = output.argmax(1)
        if target.ndim != predicted.ndim:
            return np.equal(predicted, target.argmax(1)).astype(output.dtype).mean()
        right = np.equal(predicted, target)
        if self.ignore_index is None:
            return right.astype(output.dtype).mean()
        counts = np.not_equal(target, self.ignore_index)
        hits = np.logical_and(right, counts).astype(output.dtype).sum()
        return hits / counts.astype(output.dtype).sum()

    def counted(self, output: Any, target: Any) -> Any:
        if self.ignore_index is None or target.ndim == output.ndim:
            return None
        return np.not_equal(target, self.ignore_index).astype(output.dtype).sum()


accuracy = Correct()


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """``-log(p)`` of the target's class, where ``p`` is the softmax of the output along axis 1.

    Targets are indices of classes, int64, in the output's shape without axis 1, or probabilities in
    the output's shape, as each batch has them. All is as in PyTorch.

    Args:
        label_smoothing: this part of each target is spread over all classes evenly.
        weight: a number for each class; the mean is taken by these weights.
        ignore_index: targets of this class do not count.
        probabilities: whether steps are compiled at first for targets that are a probability for
            each class; those of the other form are compiled for when they come.

    Raises:
        GraphError: an argument is not valid.

    >>> loss = md.losses.CrossEntropy(label_smoothing=0.1)
    >>> trainer = md.Trainer(net, (2, 3, 32, 32), loss, md.optim.SGD(0.1))
    """

    label_smoothing: float = 0.0
    weight: Sequence[float] | None = None
    ignore_index: int | None = None
    probabilities: bool = False

    @property
    def metrics(self) -> Mapping[str, Function]:  # type: ignore[override]
        return {"accuracy": Correct(self.ignore_index)}

    def __post_init__(self) -> None:
        check_number(self, "label_smoothing", self.label_smoothing, 0, 1)
        keep_weight(self, self.weight)
        if self.ignore_index is not None:
            check_integer(self, "ignore_index", self.ignore_index, -(1 << 53))
            if self.probabilities:
                raise GraphError(
                    f"{type(self).__name__}: ignore_index={self.ignore_index} with "
                    "probabilities=True, which have no index; valid is one of them"
                )

    def target(self, output: TensorType) -> TensorType:
        if output.rank < 2 or output.dtype not in FLOATS:
            raise GraphError(
                f"{type(self).__name__}: the output is {output}; valid is a float dtype and a "
                "shape (N, classes, ...)"
            )
        if self.weight is not None and len(self.weight) != output.shape[1]:
            raise GraphError(
                f"{type(self).__name__}: weight has {len(self.weight)} numbers; valid is one for "
                f"each of the {output.shape[1]} classes of the output {output}"
            )
        if self.probabilities:
            return output
        return TensorType((output.shape[0], *output.shape[2:]), "int64")

    def check(self, target: np.ndarray, output: TensorType) -> None:
        if self.probabilities:
            check_range(self, target, 0.0, 1.0)
            return
        check_indices(self, target, output.shape[1], self.ignore_index)

    def form(self, floats: bool, shape: Sequence[int], output: TensorType) -> Loss:
        if floats == self.probabilities or (floats and tuple(shape) != output.shape):
            return self
        return replace(self, probabilities=floats)

    def counted(self, output: Any, target: Any) -> Any:
        if self.probabilities or target.ndim == output.ndim:
            return None
        if self.weight is None and self.ignore_index is None:
            return None
        if self.weight is None:
            return Correct(self.ignore_index).counted(output, target)
        is_class, _ = self._classes(output, target)
        return pointwise("Weight", chosen, is_class, self._weights(output)).sum()

    def _weights(self, output: Any) -> Any:
        """The weights of all classes, which broadcast with the output."""
        classes = output.shape[1]
        given = np.ones(classes) if self.weight is None else np.asarray(self.weight)
        column = (1, classes, *(1 for _ in output.shape[2:]))
        return output._constant(given.reshape(column), output.dtype)

    def _classes(self, output: Any, target: Any) -> tuple[Any, Any]:
        """The mask of each target's class, and the mask of targets that count, if not all do."""
        column = (1, output.shape[1], *(1 for _ in output.shape[2:]))
        index = target.reshape(target.shape[0], 1, *target.shape[1:])
        numbers = output._constant(np.arange(output.shape[1]).reshape(column), "int64")
        is_class = np.equal(index, numbers)
        if self.ignore_index is None:
            return is_class, None
        counts = np.not_equal(index, self.ignore_index)
        return np.logical_and(is_class, counts), counts

    def _logs(self, output: Any) -> Any:
        """The logarithms of the classes' probabilities."""
        return apply(ops.LogSoftmax(1), output)

    def _factor(self, log: Any) -> Any:
        """The factor of a class's term besides its weight, from the log-probability."""
        return 1.0

    def __call__(self, output: Any, target: Any, sample_weight: Any = None) -> Any:
        logs = self._logs(output)
        classes = output.shape[1]
        weight: Any = self._weights(output)
        total_weight: Any = float(prod(output.shape) // classes)
        if sample_weight is not None:
            positions = (output.shape[0], *output.shape[2:])
            sample = aligned(self, sample_weight, positions)
            total_weight = sample.sum() * float(prod(positions) // prod(sample.shape))
            weight = weight * sample.reshape(sample.shape[0], 1, *sample.shape[1:])
        smooth, even = 1.0 - self.label_smoothing, self.label_smoothing / classes
        if self.probabilities:

            def spread(log: Any, t: Any, w: Any) -> Any:
                part = (t * smooth + even) * w
                return scalar.where(part > 0.0, -(part * log), 0.0)

            return pointwise("CrossEntropy", spread, logs, target, weight).sum() / total_weight
        is_class, counts = self._classes(output, target)
        count = pointwise("Weight", chosen, is_class, weight).sum()

        def body(log: Any, here: Any, w: Any, *counts: Any) -> Any:
            part = scalar.where(here > 0.0, smooth + even, even) * w
            if not even:
                return scalar.where(here > 0.0, -(log * w) * self._factor(log), 0.0)
            loss = -(part * log)
            return scalar.where(counts[0] > 0.0, loss, 0.0) if counts else loss

        more = [] if counts is None or not even else [counts]
        return pointwise("CrossEntropy", body, logs, is_class, weight, *more).sum() / count


def keep_weight(owner: Any, weight: Sequence[float] | None) -> None:
    """Checks the weights of classes, and keeps them as a tuple."""
    if weight is None:
        return
    given = np.asarray(weight)
    is_numeric = given.ndim == 1 and given.dtype.kind in "buif"
    if not is_numeric or not (given >= 0).all() or not np.isfinite(given).all():
        raise GraphError(
            f"{type(owner).__name__}: weight={weight!r:.80}; valid is a number of at least 0 for "
            "each class"
        )
    object.__setattr__(owner, "weight", tuple(given.astype(np.float64).tolist()))


def chosen(here: Any, weight: Any) -> Any:
    """The weight where the mask is set, else 0."""
    return scalar.where(here > 0.0, weight, 0.0)


def check_indices(
    owner: Loss, target: np.ndarray, classes: int, ignore_index: int | None = None
) -> None:
    """GraphError unless all values of a target are indices of classes, or the ignored one."""
    is_valid = (target >= 0) & (target < classes)
    if ignore_index is not None:
        is_valid |= target == ignore_index
    if not is_valid.all():
        index = tuple(np.argwhere(~is_valid)[0].tolist())
        ignored = "" if ignore_index is None else f", and {ignore_index}"
        raise GraphError(
            f"{type(owner).__name__}: target{list(index)} is {target[index]}; valid are indices "
            f"from 0 to {classes - 1} of the output's classes{ignored}"
        )


def check_range(owner: Loss, target: np.ndarray, low: float, high: float) -> None:
    """GraphError unless all values of a target are from ``low`` to ``high``."""
    wrong = ~((target >= low) & (target <= high))
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        raise GraphError(
            f"{type(owner).__name__}: target{list(place)} is {target[place]}; valid are numbers "
            f"from {low:g} to {high:g}"
        )


@dataclass(frozen=True)
class Weighted(Loss):
    """A loss whose targets are pairs: the target, and a weight for each sample. Give a trainer
    ``targets=``, the shapes and dtypes of both. An index of no class makes the loss NaN.

    Args:
        loss: one of these losses.

    Raises:
        GraphError: ``loss`` is none, or weighs no samples.

    >>> loss = md.losses.Weighted(md.losses.CrossEntropy())
    >>> types = [((2,), "int64"), ((2,), "float32")]
    >>> trainer = md.Trainer(net, (2, 3, 32, 32), loss, md.optim.SGD(0.1), targets=types)
    """

    loss: Loss

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            raise GraphError(f"Weighted: loss={self.loss!r:.80}; valid is one of minidnn.losses")
        if "sample_weight" not in signature(self.loss.__call__).parameters:
            raise GraphError(
                f"Weighted: loss={self.loss!r:.80}, which weighs no samples; valid is a loss whose "
                "call takes sample_weight"
            )

    def __call__(self, output: Any, target: Any) -> Any:
        if not isinstance(target, (tuple, list)) or len(target) != 2:
            raise GraphError(
                "Weighted: one target; valid are two, the target and the weights: give the "
                "trainer targets=[(shape, dtype), ((N,), 'float32')]"
            )
        weighed: Any = self.loss
        value = weighed(output, target[0], sample_weight=target[1])
        if not _is_by_index(self.loss):
            return value
        index, ignored = target[0], self.loss.ignore_index
        wrong = np.logical_or(index < 0, index >= output.shape[1])
        if ignored is not None:
            wrong = np.logical_and(wrong, np.not_equal(index, ignored))

        def body(loss: Any, wrong: Any) -> Any:
            return scalar.where(wrong > 0.0, nan, loss)

        # A trainer does not check values of targets whose types it is given.
        return pointwise("Checked", body, value, wrong.astype(output.dtype).max())

    def counted(self, output: Any, target: Any) -> Any:
        """The weight of a batch's mean among those of other batches: the sum of the samples'
        weights, each times the weight of the target's class if the loss has such."""
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
        weights = output._constant(numbers.reshape(column), output.dtype)
        chosen = pointwise("Own", lambda h, w: scalar.where(h > 0.0, w, 0.0), here, weights).sum(1)
        return (chosen * aligned(self, weight, tuple(chosen.shape))).sum()


def _is_by_index(loss: Any) -> TypeGuard[CrossEntropy]:
    """Whether a loss takes indices of classes, and counts by weights of classes."""
    return isinstance(loss, CrossEntropy) and not loss.probabilities
