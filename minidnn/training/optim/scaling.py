"""Scaling of the loss, so that gradients in float16 neither vanish nor overflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, where
from minidnn.graph.ir import State, Value
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import Trace, apply
from minidnn.graph.types import TensorType
from minidnn.training.arguments import check_number, check_whole
from minidnn.weights.trained import state_name

__all__ = ["LossScale"]

#: The states that hold the scale, and the number of good steps since it changed.
SCALE = state_name("loss_scale")
GOOD_STEPS = state_name("loss_scale", "good_steps")

_LEAST = 2.0**-24
"""The scale never falls below it: nothing that is finite overflows then."""


@dataclass(frozen=True)
class LossScale:
    """Multiplies the loss before it is differentiated, and divides the gradients of parameters.

    The scale is a state of the step's graph.  A step whose gradients are not all finite changes no
    parameter and makes the scale smaller; after a number of good steps in a row it grows.  As in
    PyTorch's GradScaler.

    Args:
        initial: the scale that training begins with.
        growth: by what it is multiplied after ``every`` good steps.
        backoff: by what it is multiplied after a step that was skipped.
        every: after how many good steps in a row it grows.

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
        check_whole(self, "every", self.every, 1)
        if not self.backoff:
            raise GraphError(f"LossScale: backoff={self.backoff!r}; valid is a number above 0")

    def state(self, trace: Trace) -> State:
        """The state of a graph that holds the scale."""
        name = SCALE
        begin = partial(np.full, (), self.initial, np.float32)
        return trace.state(name, name, TensorType(()), begin)

    def settle(self, trace: Trace, finite: Value) -> None:
        """Says what the scale becomes after a step; ``finite`` is a number that is finite if the
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
    """Gradients divided by the scale that they were made with."""
    found = []
    for each in gradients:
        with trace.scope("loss_scale", leaf=True):
            found.append(pointwise("Unscale", lambda g, s: g / s, each, scale))
    return found


def if_all_finite(trace: Trace, loss: Value, gradients: Sequence[Value]) -> Value:
    """The loss if it and all gradients are finite, else a number that is not.

    Sums over gradients tell: nothing makes them finite again.
    """
    with trace.scope("loss_scale", leaf=True):
        sums: list[Any] = []
        for each in gradients:
            others = tuple(range(1, each.type.rank))
            one: Any = apply(ops.Reduce("sum", others), each) if others else each
            sums.append(one if one.type.rank else one.reshape((1,)))
        whole: Any = sums[0] if len(sums) == 1 else apply(ops.Concat(0), *sums)
        found: Value = pointwise(
            "Guard", lambda x, y: where(abs(x) < inf, y, x - x), whole.sum(), loss
        )
    return found
