"""Dropout: in training some elements, or channels, are 0; else it does nothing."""

from __future__ import annotations

from typing import Any

from minidnn.graph import operators as ops
from minidnn.graph.trace import apply, current_trace
from minidnn.layers.arguments import check_rank
from minidnn.layers.layer import Layer

__all__ = ["Dropout", "Dropout2d"]


def dropped(x: Any, p: float, *, channels: bool = False) -> Any:
    """``x`` with elements, or channels, at random 0, in a graph of training; else ``x``."""
    trace = current_trace()
    if not trace.training or p == 0:
        return apply(ops.Dropout(p), x)
    seed, step, stream = trace.random_numbers()
    return apply(ops.RandomDrop(p, stream, channels), x, seed, step)


class Dropout(Layer):
    """In training 0 with a probability, else ``x / (1 - p)``; at inference ``x``.

    Which elements are 0 follows from a seed and the number of the run, which are states of the
    graph, and from the place of the layer.

    Args:
        p: the probability, from 0 to 1.
        inplace: ignored, as memory is planned for the whole graph.

    Raises:
        GraphError: ``p`` is not valid.

    Source: Srivastava et al., JMLR 15 (2014). Random numbers: Salmon et al., Philox, SC 2011.

    >>> net = Sequential(Flatten(), Dropout(0.2), Linear(64, 10))
    """

    _channels = False

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        self.p = ops.Dropout(p).p

    def forward(self, x: Any) -> Any:
        return dropped(x, self.p, channels=self._channels)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout2d(Dropout):
    """Dropout of whole channels of (N, C, H, W); the arguments are those of :class:`Dropout`."""

    _channels = True

    def forward(self, x: Any) -> Any:
        check_rank("Dropout2d", x, 4)
        return super().forward(x)
