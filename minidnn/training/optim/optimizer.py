"""The base of optimizers: updates of states, numbers of a step, groups, clipping, loss scaling.

An optimizer says what a parameter and its own states (*slots*) become by scalar expressions, each
of which is one element-wise operator.  A step whose loss is not finite changes nothing.  The loss
is scaled, so that gradients in float16 neither vanish nor overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from math import inf, isfinite
from typing import Any, ClassVar, Literal

import numpy as np

from minidnn.errors import GraphError, did_you_mean
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, where
from minidnn.graph.ir import State, Value
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import Trace, apply
from minidnn.graph.types import TensorType
from minidnn.training.arguments import check_integer, check_number
from minidnn.weights.trained import state_name

__all__ = [
    "LossScale",
    "Optimizer",
    "Update",
]


#: The options that a group of parameters may have.
_GROUP = ("lr", "weight_decay")


class Update:
    """The update of one parameter, which :meth:`Optimizer.apply` is given and defines.

    Args:
        trace: records the graph of the step.
        parameter: the parameter, before the step.
        gradient: of the loss by the parameter.
        slots: the states that are kept for it, by the optimizer's names of them.
        numbers: the step's numbers, as :meth:`Optimizer.numbers` names them.
        loss: nothing changes in steps where it is not finite.

    >>> class Signs(md.optim.Optimizer):
    ...     def apply(self, update):
    ...         p, g = update.parameter, update.gradient
    ...         lr = update.numbers["rate"]
    ...         step = lambda p, g, lr: p - lr * md.scalar.where(g > 0, 1.0, -1.0)
    ...         update.become(p, step, p, g, lr)
    """

    def __init__(
        self,
        trace: Trace,
        parameter: State,
        gradient: Value,
        slots: Mapping[str, State],
        numbers: Mapping[str, Value],
        loss: Value,
    ) -> None:
        self.parameter = parameter
        self.gradient = gradient
        self.slots = slots
        #: The values of :meth:`Optimizer.numbers`, by name.
        self.numbers = numbers
        #: The weight decay, the factor of the learning rate, and whether the parameter is a weight
        #: of a layer, and neither a bias nor of a normalization.
        self.decay, self.factor, self.is_weight = 0.0, 1.0, True
        self._trace, self._loss = trace, loss

    def become(self, state: State, body: Callable[..., Expression], *operands: Value) -> Value:
        """Sets ``state`` to a formula of operands, if the loss is finite; returns its new value."""
        new = if_finite(self._loss, state, body, *operands)
        self._trace.update(state, new)
        return new


def if_finite(loss: Value, old: Value, body: Callable[..., Expression], *operands: Value) -> Value:
    """The formula of operands if the loss is finite, else the old value, as one operator."""
    values = list(dict.fromkeys((loss, old, *operands)))
    indices = [values.index(value) for value in (loss, old, *operands)]

    def guarded(*arguments: Expression) -> Expression:
        loss, old, *rest = (arguments[i] for i in indices)
        return where(abs(loss) < inf, body(*rest), old)

    new: Value = pointwise("Update", guarded, *values)
    return new


@dataclass(frozen=True)
class Optimizer:
    """An update rule of parameters, by their gradients. A subclass defines :meth:`apply`.

    Args:
        lr: the learning rate, or a function from the number of a step, counted from 0, to one: a
            schedule.
        weight_decay: the factor of parameters where the formula adds them to gradients.
        decay: "all" parameters decay, or "weights", which leaves out biases and normalizations,
            those with fewer than two axes.
        groups: options by patterns of parameters' names: another ``weight_decay``, or an ``lr``
            that multiplies the learning rate; the last pattern that fits counts.
        clip_norm: the largest norm of all gradients together; longer ones are scaled down. None for
            any.
        clip_value: the largest absolute value in a gradient; this limit is applied first.

    Raises:
        GraphError: an argument is not valid.

    >>> md.optim.SGD(0.1, momentum=0.9, groups={"fc.*": {"lr": 10.0, "weight_decay": 0.0}})
    """

    lr: float | Callable[[int], float]
    _: KW_ONLY
    weight_decay: float = 0.0
    decay: Literal["all", "weights"] = "all"
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    clip_norm: float | None = None
    clip_value: float | None = None

    #: Names of the states that the optimizer keeps for each parameter; they begin as 0.
    slots: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if hasattr(self.lr, "after_epoch"):
            raise GraphError(
                f"{type(self).__name__}: lr is a {type(self.lr).__name__}, which is a callback; "
                "valid is a number or a schedule, and Trainer.fit(callbacks=[...]) for the callback"
            )
        if not callable(self.lr):
            check_number(self, "lr", self.lr, 0)
        check_number(self, "weight_decay", self.weight_decay, 0)
        if self.decay not in ("all", "weights"):
            raise GraphError(
                f"{type(self).__name__}: decay={self.decay!r:.80}; valid are 'all' and 'weights'"
            )
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                check_number(self, name, getattr(self, name), 0)
        groups: Any = self.groups
        if not isinstance(groups, Mapping) or not all(
            isinstance(given, Mapping) for given in groups.values()
        ):
            raise GraphError(
                f"{type(self).__name__}: groups={groups!r:.80}; valid is a mapping from patterns "
                f"to mappings with {', '.join(_GROUP)}"
            )
        for pattern, given in self.groups.items():
            for key, number in given.items():
                if key not in _GROUP:
                    raise GraphError(
                        f"{type(self).__name__}: groups[{pattern!r}] has {key!r:.80}; valid are "
                        f"{', '.join(_GROUP)}"
                    )
                check_number(self, f"groups[{pattern!r}][{key!r}]", number, 0)

    @property
    def kept(self) -> tuple[str, ...]:
        """The :attr:`slots` that its arguments ask for."""
        return self.slots

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        found = self.lr(step) if callable(self.lr) else self.lr
        try:
            rate = float(found)
        except (TypeError, ValueError):
            rate = -inf
        if not (isfinite(rate) and rate >= 0):
            raise GraphError(
                f"{type(self).__name__}: lr gives {found!r:.80} for step {step}; valid is a number "
                "of at least 0"
            )
        return rate

    def numbers(self, step: int) -> dict[str, float]:
        """The numbers of a step, counted from 0, by name; they are inputs of the step's graph."""
        return {"rate": self.rate(step)}

    def apply(self, update: Update) -> None:
        """Defines what the parameter and its slots become."""
        raise GraphError(f"{type(self).__name__} does not define apply(self, update)")

    def settle(self, update: Update) -> None:
        """Gives a parameter the decay and the factor of its groups."""
        name = update.parameter.name
        update.is_weight = update.parameter.type.rank >= 2 or self.decay == "all"
        update.decay = float(self.weight_decay) if update.is_weight else 0.0
        for pattern, given in self.groups.items():
            if fnmatchcase(name, pattern):
                update.decay = float(given.get("weight_decay", update.decay))
                update.factor = float(given.get("lr", update.factor))

    def check_groups(self, names: Sequence[str]) -> None:
        """GraphError if a pattern fits none of the parameters' names."""
        for pattern in self.groups:
            if not any(fnmatchcase(name, pattern) for name in names):
                hint = did_you_mean(pattern, names) or f"; they are {', '.join(names):.300}"
                raise GraphError(
                    f"{type(self).__name__}: groups[{pattern!r}] fits no parameter that is "
                    f"trained{hint}"
                )

    def clipped(self, gradients: Sequence[Value]) -> list[Value]:
        """The gradients, clipped by value and then by their common norm."""
        clipped: list[Any] = list(gradients)
        if self.clip_value is not None:
            most = float(self.clip_value)
            clipped = [g.clip(-most, most) for g in clipped]
        if self.clip_norm is not None:
            squares = [squared(g) for g in clipped]
            total = squares[0]
            for square in squares[1:]:
                total = total + square
            most = float(self.clip_norm)

            def body(g: Expression, total: Expression) -> Expression:
                scale = most / (total**0.5 + 1e-6)
                return g * where(scale < 1.0, scale, 1.0)

            clipped = [pointwise("ClipNorm", body, g, total) for g in clipped]
        return clipped


def decayed(update: Update, p: Expression, g: Expression) -> Expression:
    """The gradient with the weight decay, where that is part of it."""
    return g + update.decay * p if update.decay else g


def squared(x: Any) -> Any:
    """The sum of the squares of all elements."""
    return (x * x).sum()


#: The states that hold the scale, and the number of good steps since it changed.
SCALE = state_name("loss_scale")
GOOD_STEPS = state_name("loss_scale", "good_steps")

_LEAST = 2.0**-24
"""The least scale, with which nothing that is finite overflows."""


@dataclass(frozen=True)
class LossScale:
    """Multiplies the loss before it is differentiated, and divides the gradients of parameters.

    The scale is a state of the step's graph.  A step whose gradients are not all finite changes no
    parameter and makes the scale smaller; after a number of good steps in a row it grows.  As in
    PyTorch's GradScaler.

    Args:
        initial: the scale that training begins with.
        growth: its factor after ``every`` good steps.
        backoff: its factor after a step that was skipped.
        every: the number of good steps in a row after which it grows.

    Raises:
        GraphError: an argument is not valid.

    >>> scale = md.optim.LossScale(initial=1024.0, every=500)
    """

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    every: int = 2000

    def __post_init__(self) -> None:
        check_number(self, "initial", self.initial, _LEAST)
        check_number(self, "growth", self.growth, 1)
        check_number(self, "backoff", self.backoff, 0, 1)
        check_integer(self, "every", self.every, 1)
        if not self.backoff:
            raise GraphError(f"LossScale: backoff={self.backoff!r}; valid is a number above 0")

    def state(self, trace: Trace) -> State:
        """The state of a graph that holds the scale."""
        name = SCALE
        begin = partial(np.full, (), self.initial, np.float32)
        return trace.state(name, name, TensorType(()), begin)

    def settle(self, trace: Trace, finite: Value) -> None:
        """Adds the updates of the scale after a step; the value ``finite`` is finite exactly if the
        step was a good one."""
        scale, name = self.state(trace), GOOD_STEPS
        type = TensorType((), "int64")
        good = trace.state(name, name, type, partial(np.zeros, (), np.int64))
        growth, backoff, every = float(self.growth), float(self.backoff), float(self.every)

        def scaled(scale: Expression, good: Expression, finite: Expression) -> Expression:
            grown, smaller = scale * growth, scale * backoff
            grown = where(grown < inf, grown, scale)
            after = where(good + 1.0 >= every, grown, scale)
            return where(abs(finite) < inf, after, where(smaller > _LEAST, smaller, _LEAST))

        def counted(good: Expression, finite: Expression) -> Expression:
            more = where(good + 1.0 >= every, 0.0, good + 1.0)
            return where(abs(finite) < inf, more, 0.0)

        with trace.scope("loss_scale", leaf=True):
            trace.update(scale, pointwise("LossScale", scaled, scale, good, finite))
            trace.update(good, pointwise("GoodSteps", counted, good, finite, dtype="int64"))


def unscaled(trace: Trace, gradients: Sequence[Value], scale: Value) -> list[Value]:
    """The gradients divided by the scale of the loss that they are of."""
    divided = []
    for gradient in gradients:
        with trace.scope("loss_scale", leaf=True):
            divided.append(pointwise("Unscale", lambda g, s: g / s, gradient, scale))
    return divided


def if_all_finite(trace: Trace, loss: Value, gradients: Sequence[Value]) -> Value:
    """The loss if it and all gradients are finite, else a number that is not.

    Each gradient is summed, since a sum with a value that is not finite is not finite.
    """
    with trace.scope("loss_scale", leaf=True):
        sums: list[Any] = []
        for gradient in gradients:
            others = tuple(range(1, gradient.type.rank))
            total: Any = apply(ops.Reduce("sum", others), gradient) if others else gradient
            sums.append(total if total.type.rank else total.reshape((1,)))
        totals: Any = sums[0] if len(sums) == 1 else apply(ops.Concat(0), *sums)
        guard: Value = pointwise(
            "Guard", lambda x, y: where(abs(x) < inf, y, x - x), totals.sum(), loss
        )
    return guard
