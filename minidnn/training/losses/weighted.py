"""Weights of samples, as a target beside the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minidnn.errors import GraphError
from minidnn.training.losses.common import Loss

__all__ = ["Weighted"]


@dataclass(frozen=True)
class Weighted(Loss):
    """A loss whose targets are pairs: the target, and a weight for each sample. Give a trainer
    ``targets=``, the shapes and dtypes of both.

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
        return weighed(output, target[0], sample_weight=target[1])
