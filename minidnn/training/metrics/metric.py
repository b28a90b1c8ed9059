"""What a metric is: a number of a whole set, and not a mean of its batches' numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from minidnn.errors import GraphError

__all__ = ["Metric", "States", "merged"]

#: What is kept of the batches so far, by name.
States = Mapping[str, np.ndarray]


class Metric:
    """A number, or an array, of all outputs and targets of an epoch or of an evaluation.

    A subclass defines what it keeps of a batch, which is added up over batches, or put one behind
    the other, and what that comes to.

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
    #: Whether what is kept of batches is added up; else it is put one behind the other.
    adds: bool = True

    def seen(self, output: Any, target: Any) -> tuple[Any, ...]:
        """What of a batch goes to the host, on symbols: by default the output."""
        if not hasattr(output, "dtype"):
            raise GraphError(
                f"{type(self).__name__}: the network has several outputs; valid are metrics by "
                'their names: metrics={"main": {...}}'
            )
        return (output,)

    def batch(self, output: Any, target: Any) -> States:
        """What is kept of a batch, of what :meth:`seen` gave and the target."""
        raise GraphError(f"{type(self).__name__} does not define batch(self, output, target)")

    def result(self, states: States) -> Any:
        """What that of all batches comes to: a number, or an array."""
        raise GraphError(f"{type(self).__name__} does not define result(self, states)")

    def taken(self, seen: Sequence[np.ndarray], target: np.ndarray, shape: Sequence[int]) -> States:
        """:meth:`batch` of what :meth:`seen` gave, of an output of this shape."""
        (output,) = seen
        return self.batch(output, target)

    def of(self, output: Any, target: Any) -> Any:
        """The metric of arrays."""
        return self.result(self.batch(np.asarray(output), np.asarray(target)))

    @property
    def name(self) -> str:
        """What it is called where no other name is given."""
        apart = re.sub(r"([a-z0-9])([A-Z])|([A-Z])(?=[A-Z][a-z])", r"\1\3_\2", type(self).__name__)
        return apart.lower()


def merged(metric: Metric, before: States | None, new: States) -> States:
    """What is kept of the batches before and of a new one."""
    if before is None:
        return {name: np.array(array) for name, array in new.items()}
    if metric.adds:
        return {name: before[name] + array for name, array in new.items()}
    return {name: np.concatenate([before[name], array]) for name, array in new.items()}
