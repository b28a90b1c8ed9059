"""Dropout layers: in training, random elements or channels are 0; at inference, they do nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import where
from minidnn.graph.ir import Value
from minidnn.graph.scalar_functions import SELU_ALPHA, SELU_SCALE
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import apply, current_trace
from minidnn.graph.types import plain
from minidnn.layers.arguments import check_rank
from minidnn.layers.layer import Layer

__all__ = [
    "AlphaDropout",
    "DropPath",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "FeatureAlphaDropout",
    "StochasticDepth",
]


def dropped(x: Any, p: float, *, channels: bool = False) -> Any:
    """``x`` with random elements, or channels, set to 0 in a training graph; else ``x``."""
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

    _shown = ("p",)
    _channels = False

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        self.p = ops.Dropout(p).p

    def forward(self, x: Any) -> Any:
        return dropped(x, self.p, channels=self._channels)


class Dropout2d(Dropout):
    """Dropout of whole channels of (N, C, H, W); the arguments are those of :class:`Dropout`."""

    _channels = True

    def forward(self, x: Any) -> Any:
        check_rank("Dropout2d", x, 4)
        return super().forward(x)


class Dropout1d(Dropout):
    """Dropout of whole channels of (N, C, L); the arguments are those of :class:`Dropout`."""

    _channels = True

    def forward(self, x: Any) -> Any:
        check_rank("Dropout1d", x, 3)
        return super().forward(x)


class AlphaDropout(Dropout):
    """In training the least value of :class:`SELU` with a probability, and all scaled and shifted
    so that mean and variance stay; at inference ``x``.

    Args:
        p: the probability, from 0 to less than 1.
        inplace: ignored, as memory is planned for the whole graph.

    Raises:
        GraphError: ``p`` is not valid.

    Source: Klambauer et al., arXiv:1706.02515.

    >>> net = Sequential(Linear(64, 32), SELU(), AlphaDropout(0.1))
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__(p, inplace)
        if self.p == 1:
            raise GraphError(f"{type(self).__name__}: p={p!r}; valid is a number below 1")

    def forward(self, x: Any) -> Any:
        if not current_trace().training or self.p == 0:
            return apply(ops.Dropout(self.p), x)
        check_rank(type(self).__name__, x, *range(2 if self._channels else 1, 7))
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self._channels else x.shape
        ones = np.broadcast_to(x._constant(np.ones((1,) * len(shape)), x.dtype), shape)
        least = -SELU_ALPHA * SELU_SCALE
        factor = ((1.0 - self.p) * (1.0 + self.p * least**2)) ** -0.5

        def body(x: Any, kept: Any) -> Any:
            return factor * (where(kept > 0.0, x, least) - self.p * least)

        return pointwise("AlphaDropout", body, x, dropped(ones, self.p))


class FeatureAlphaDropout(AlphaDropout):
    """:class:`AlphaDropout` of whole channels; the arguments are those of :class:`AlphaDropout`."""

    _channels = True


class DropPath(Layer):
    """In training, a whole sample is 0 with a probability, else it is divided by ``1 - drop_prob``;
    at inference ``x``. At the end of a residual branch it drops the branch: stochastic depth.

    Args:
        drop_prob: the probability, from 0 to 1.
        scale_by_keep: whether what stays is divided by ``1 - drop_prob``.

    Raises:
        GraphError: ``drop_prob`` is not valid.

    Source: Huang et al., arXiv:1603.09382.

    >>> net = Sequential(Conv2d(3, 8, 3), DropPath(0.1))
    """

    _shown = ("drop_prob",)

    def __init__(self, drop_prob: float = 0.0, scale_by_keep: bool = True) -> None:
        self.drop_prob = _probability("DropPath", "drop_prob", drop_prob)
        self.scale_by_keep = bool(scale_by_keep)

    def forward(self, x: Any) -> Any:
        kept = dropped_rows(x, self.drop_prob, x.shape[0] if isinstance(x, Value) else 1)
        if self.scale_by_keep or not current_trace().training or self.drop_prob == 1:
            return kept
        return kept * (1.0 - self.drop_prob)


class StochasticDepth(Layer):
    """:class:`DropPath` with torchvision's arguments.

    Args:
        p: the probability, from 0 to 1.
        mode: "row" decides for each sample, "batch" for all at once.

    Raises:
        GraphError: an argument is not valid.

    Source: Huang et al., arXiv:1603.09382.

    >>> net = Sequential(Conv2d(3, 8, 3), StochasticDepth(0.1, "row"))
    """

    _shown = ("p", "mode")

    def __init__(self, p: float, mode: str) -> None:
        self.p = _probability("StochasticDepth", "p", p)
        if mode not in ("row", "batch"):
            raise GraphError(f"StochasticDepth: mode={mode!r:.80}; valid are 'row' and 'batch'")
        self.mode = mode

    def forward(self, x: Any) -> Any:
        rows = x.shape[0] if self.mode == "row" and isinstance(x, Value) else 1
        return dropped_rows(x, self.p, rows)


def _probability(owner: str, name: str, value: Any) -> float:
    """An argument as a float; GraphError unless it is a number from 0 to 1."""
    given = plain(value)
    if type(given) not in (int, float) or not 0 <= given <= 1:
        raise GraphError(f"{owner}: {name}={value!r:.80}; valid is a number from 0 to 1")
    return float(given)


def dropped_rows(x: Any, p: float, rows: int) -> Any:
    """Like :func:`dropped`, but drops whole rows of ``x`` seen as ``rows`` rows of equal size."""
    if not current_trace().training or p == 0:
        return apply(ops.Dropout(p), x)
    wide = apply(ops.View((rows, 1, x.type.size // rows)), x)
    return apply(ops.View(x.shape), dropped(wide, p, channels=True))
