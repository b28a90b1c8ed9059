"""Normalization layers.

Batch normalization takes the batch's statistics in training, stores running statistics, and uses
these at inference.  The other layers take statistics of each image: over groups of its channels,
over one channel, over the last axes, or over neighbouring channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from types import NoneType
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, sqrt
from minidnn.graph.ir import Value
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import apply, current_trace
from minidnn.graph.types import numpy_dtype, plain
from minidnn.graph.window import WindowAxis, average_window
from minidnn.layers.arguments import (
    check_channels,
    check_count,
    check_normalized_shape,
    check_rank,
    misfit,
)
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import LazyArray, Parameter, filled

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "LayerNorm",
    "LocalResponseNorm",
    "RMSNorm",
]


def _moved(old: Expression, new: Expression, factor: Expression) -> Expression:
    """A running statistic moved towards a new one."""
    return old * (1.0 - factor) + new * factor


class _PerChannel(Layer):
    """The base of layers with a weight and a bias, and perhaps statistics, for each channel."""

    affine: bool

    def _add_affine(self, channels: int, affine: bool) -> None:
        """Adds ``weight`` and ``bias``, or the constants 1 and 0 in their place."""
        self.affine = affine
        if affine:
            self.weight = Parameter((channels,), filled(1.0))
            self.bias = Parameter((channels,), filled(0.0))
        else:
            shape = (channels,)
            self._unit = tuple(LazyArray(partial(np.full, shape, v, np.float32)) for v in (1, 0))

    def _add_statistics(self, channels: int, momentum: float | None) -> None:
        """Adds the running statistics."""
        name = type(self).__name__
        if isinstance(momentum, bool) or not isinstance(momentum, (int, float, NoneType)):
            raise GraphError(f"{name}: momentum={momentum!r:.80}; valid are a number and None")
        self.momentum = momentum
        self.running_mean = Parameter((channels,), filled(0.0), trainable=False)
        self.running_var = Parameter((channels,), filled(1.0), trainable=False)
        self.num_batches_tracked = Parameter((), filled(0.0), "int64", optional=True)

    def _learns_statistics(self) -> bool:
        """Whether the recorded graph takes the batch's statistics and updates the stored ones."""
        return current_trace().training and not self.frozen

    def _by_statistics(self, eps: float, x: Any, mean: Any = None, var: Any = None) -> Any:
        """``x`` normalized by a mean and a variance of each channel, by default the stored ones."""
        names = ("weight", "bias") if self.affine else ()
        scale = self.constants(*names) if names else self._unit_scale()
        if mean is None:
            mean, var = self.constants("running_mean", "running_var")
        return apply(ops.BatchNorm(eps), x, *scale, mean, var)

    def _statistics(self, x: Any) -> tuple[Value, Value, float]:
        """The mean and the variance of each channel, over the batches of all ranks of the trace,
        and the factor that makes the variance unbiased."""
        axes = (0, *range(2, x.type.rank))
        ranks = current_trace().ranks
        factor = self._unbiased(x, axes, ranks)
        mean: Any = apply(ops.Reduce("mean", axes), x)
        var: Any = apply(ops.Variance(), x, mean)
        if ranks > 1:
            own, total = mean, ops.SumOverRanks(ranks)
            mean = apply(total, own) / float(ranks)
            difference = own - mean
            var = apply(total, var + difference * difference) / float(ranks)
        return mean, var, factor

    def _unbiased(self, x: Any, axes: tuple[int, ...], ranks: int = 1) -> float:
        """The factor that makes a variance over axes the unbiased estimate of the population's."""
        count = ranks * prod(x.shape[d] for d in axes)
        if count == 1:
            raise misfit(
                type(self).__name__,
                f"input has shape {x.shape}, which is one value for each statistic, and has no "
                "variance; valid in training are several, by a larger batch or larger images, or "
                "the layer frozen: layer.freeze()",
            )
        return count / (count - 1)

    def _store(self, factor: Any, mean: Any, var: Any) -> None:
        """Moves the stored statistics towards others, by a part ``factor`` of the difference."""
        trace = current_trace()
        for name, new in (("running_mean", mean), ("running_var", var)):
            state: Any = self.parameter(name)
            moved = pointwise("Moved", _moved, trace.latest(state), new, factor)
            trace.update_again(state, moved)

    def _unit_scale(self) -> tuple[Value, ...]:
        """The scale 1 and shift 0 of ``affine=False``."""
        trace, type = current_trace(), self.running_mean.type
        prefix = f"{trace.path}." if trace.path else ""
        one, zero = self._unit
        return (
            trace.constant((self, "weight"), f"{prefix}weight", type, one),
            trace.constant((self, "bias"), f"{prefix}bias", type, zero),
        )

    def _by_groups(self, groups: int, eps: float, x: Any) -> Any:
        """``x`` normalized by the mean and variance of each group of an image's channels."""
        names = ("weight", "bias") if self.affine else ()
        return apply(ops.GroupNorm(groups, eps), x, *(self.constants(*names) if names else ()))


class _BatchNorm(_PerChannel):
    """The base of batch normalizations of one or several ranks."""

    #: The ranks of inputs that are valid.
    ranks: tuple[int, ...]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        name = type(self).__name__
        self.num_features = check_count(name, "num_features", num_features)
        if not track_running_stats:
            raise GraphError(
                f"{name}: track_running_stats=False; valid is True, "
                "as inference needs stored statistics"
            )
        self.op = ops.BatchNorm(eps)
        self._add_affine(num_features, affine)
        self._add_statistics(num_features, momentum)

    def forward(self, x: Any) -> Any:
        check_rank(type(self).__name__, x, *self.ranks)
        if not self._learns_statistics():
            return self._by_statistics(self.op.eps, x)
        check_channels(type(self).__name__, x, self.num_features)
        mean, var, unbias = self._statistics(x)
        trace = current_trace()
        counter: Any = self.parameter("num_batches_tracked")
        counted = trace.latest(counter) + 1
        trace.update_again(counter, counted)
        averages = self.momentum is None
        self._store(
            1.0 / counted.astype(x.dtype) if averages else self.momentum, mean, var * unbias
        )
        return self._by_statistics(self.op.eps, x, mean, var)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.op.eps}" + ("" if self.affine else ", affine=False")


class BatchNorm1d(_BatchNorm):
    """Batch normalization of (N, C) or (N, C, L).

    The arguments are those of :class:`BatchNorm2d`.
    """

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """``(x - running_mean) / sqrt(running_var + eps) * weight + bias`` for each channel of (N, C,
    H, W).

    In training mean and variance are those of the batch, and the stored ones move towards them; the
    stored variance is that estimated for the population.

    Args:
        num_features: the number of channels, C.
        eps: added to the variance.
        momentum: the part by which stored statistics move towards those of a batch; None makes them
            the mean over all batches.
        affine: whether there are parameters ``weight`` and ``bias`` (C,).
        track_running_stats: only True is valid, as inference needs stored statistics.

    Raises:
        GraphError: an argument is not valid.

    Source: Ioffe and Szegedy, arXiv:1502.03167.

    >>> net = Sequential(Conv2d(3, 8, 3, bias=False), BatchNorm2d(8), ReLU())
    """

    ranks = (4,)


class GroupNorm(_PerChannel):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` of (N, C, ...), where mean and variance are
    those of each group of an image's channels.

    Args:
        num_groups: the number of groups that channels are split into.
        num_channels: the number of channels, C, a multiple of ``num_groups``.
        eps: added to the variance.
        affine: whether there are parameters ``weight`` and ``bias`` (C,).

    Raises:
        GraphError: an argument is not valid.

    Source: Wu and He, arXiv:1803.08494.

    >>> net = Sequential(Conv2d(3, 8, 3), GroupNorm(4, 8))
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        self.num_groups = check_count("GroupNorm", "num_groups", num_groups)
        self.num_channels = check_count("GroupNorm", "num_channels", num_channels)
        if num_channels % num_groups:
            raise GraphError(
                f"GroupNorm: num_groups={num_groups} does not divide num_channels={num_channels}; "
                "valid is a divisor"
            )
        self.op = ops.LayerNorm(1, eps)
        self._add_affine(num_channels, affine)

    def forward(self, x: Any) -> Any:
        check_rank("GroupNorm", x, 2, 3, 4, 5)
        check_channels(type(self).__name__, x, self.num_channels)
        return self._by_groups(self.num_groups, self.op.eps, x)

    def extra_repr(self) -> str:
        eps = f"{self.num_groups}, {self.num_channels}, eps={self.op.eps}"
        return eps + ("" if self.affine else ", affine=False")


class _InstanceNorm(_PerChannel):
    """The base of instance normalizations; ``rank`` is that of valid inputs."""

    rank: int

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
    ) -> None:
        self.num_features = check_count(type(self).__name__, "num_features", num_features)
        self.op = ops.BatchNorm(eps)
        self.track_running_stats = bool(track_running_stats)
        self._add_affine(num_features, affine)
        if track_running_stats:
            self._add_statistics(num_features, momentum)

    def forward(self, x: Any) -> Any:
        check_rank(type(self).__name__, x, self.rank)
        check_channels(type(self).__name__, x, self.num_features)
        if self.track_running_stats and not self._learns_statistics():
            return self._by_statistics(self.op.eps, x)
        if self.track_running_stats and self.momentum:
            axes = tuple(range(2, x.type.rank))
            all_axes, unbias = (0, *axes), self._unbiased(x, axes)
            mean = x.mean(axes, keepdims=True)
            centred = x - mean
            var = (centred * centred).mean(axes, keepdims=True)
            self._store(self.momentum, mean.mean(all_axes), var.mean(all_axes) * unbias)
        return self._by_groups(self.num_features, self.op.eps, x)

    def extra_repr(self) -> str:
        flags = {"affine": self.affine, "track_running_stats": self.track_running_stats}
        shown = "".join(f", {name}=True" for name, value in flags.items() if value)
        return f"{self.num_features}, eps={self.op.eps}{shown}"


class InstanceNorm1d(_InstanceNorm):
    """Instance normalization of (N, C, L); the arguments are those of :class:`InstanceNorm2d`."""

    rank = 3


class InstanceNorm2d(_InstanceNorm):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` of (N, C, H, W), where mean and variance are
    those of each channel of an image.

    Args:
        num_features: the number of channels, C.
        eps: added to the variance.
        momentum: the part by which stored statistics move, in training, towards the images' mean.
        affine: whether there are parameters ``weight`` and ``bias`` (C,).
        track_running_stats: whether statistics are stored, ``running_mean`` and ``running_var``
            (C,), and taken instead of an image's own at inference.

    Raises:
        GraphError: an argument is not valid.

    Source: Ulyanov, Vedaldi and Lempitsky, arXiv:1607.08022.

    >>> net = Sequential(Conv2d(3, 8, 3), InstanceNorm2d(8, affine=True), ReLU())
    """

    rank = 4


class LayerNorm(Layer):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last axes.

    Args:
        normalized_shape: the sizes of these axes, or the size of the last one.
        eps: added to the variance.
        elementwise_affine: whether there are a parameter ``weight`` of that shape, and a bias.
        bias: whether there is a parameter ``bias`` of that shape.

    Raises:
        GraphError: an argument is not valid.

    Source: Ba, Kiros and Hinton, arXiv:1607.06450.

    >>> net = Sequential(Linear(16, 32), LayerNorm(32))
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        self.normalized_shape = check_normalized_shape("LayerNorm", normalized_shape)
        self.op = ops.LayerNorm(len(self.normalized_shape), eps)
        self.weight = Parameter(self.normalized_shape, filled(1.0)) if elementwise_affine else None
        self.bias = (
            Parameter(self.normalized_shape, filled(0.0)) if elementwise_affine and bias else None
        )

    def forward(self, x: Any) -> Any:
        if isinstance(x, Value) and x.shape[-self.op.axes :] != self.normalized_shape:
            raise misfit(
                "LayerNorm",
                f"input has shape {x.shape}; valid are last axes of {self.normalized_shape}",
            )
        return apply(self.op, x, *self.constants("weight", "bias"))

    def extra_repr(self) -> str:
        shown = f"{self.normalized_shape}, eps={self.op.eps}"
        if self.weight is None:
            return f"{shown}, elementwise_affine=False"
        return shown + ("" if self.bias else ", bias=False")


class LocalResponseNorm(Layer):
    """``x / (k + alpha * mean)**beta`` of (N, C, ...), where ``mean`` is that of the squares of an
    element and its neighbours in other channels; channels beyond the ends count as 0.

    Args:
        size: how many channels are neighbours, the element's own in the middle.
        alpha: what their mean square is multiplied by.
        beta: the exponent.
        k: what is added.

    Raises:
        GraphError: an argument is not valid.

    Source: Krizhevsky, Sutskever and Hinton, NIPS 2012.

    >>> net = Sequential(Conv2d(3, 8, 3), ReLU(), LocalResponseNorm(5))
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size = check_count("LocalResponseNorm", "size", size)
        for name, value in (("alpha", alpha), ("beta", beta), ("k", k)):
            if type(plain(value)) not in (int, float):
                raise GraphError(f"LocalResponseNorm: {name}={value!r:.80}; valid is a number")
        self.alpha, self.beta, self.k = float(alpha), float(beta), float(k)

    def forward(self, x: Any) -> Any:
        if not isinstance(x, Value) or x.type.rank < 3:
            shown = f"shape {x.shape}" if isinstance(x, Value) else f"{x!r:.80}"
            raise misfit("LocalResponseNorm", f"input has {shown}; valid is rank 3 or more")
        squares = apply(ops.Formula(argument(0) * argument(0), title="Square"), x)
        columns = apply(ops.View((x.shape[0], 1, x.shape[1], prod(x.shape[2:]))), squares)
        before = self.size // 2
        along = WindowAxis(self.size, 1, (before, self.size - 1 - before))
        window = average_window(along, WindowAxis(1), True, self.size)
        mean = apply(ops.View(x.shape), apply(ops.Pool2d(window), columns))

        def body(a: Any, m: Any) -> Any:
            return a / (self.k + self.alpha * m) ** self.beta

        return pointwise("LRN", body, x, mean)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class RMSNorm(Layer):
    """``x / sqrt(mean(x**2) + eps) * weight`` over the last axes.

    Args:
        normalized_shape: the sizes of these axes, or the size of the last one.
        eps: added to the mean square; None is the dtype's smallest step from 1.
        elementwise_affine: whether there is a parameter ``weight`` of that shape.

    Raises:
        GraphError: an argument is not valid.

    Source: Zhang and Sennrich, arXiv:1910.07467.

    >>> net = Sequential(Linear(16, 32), RMSNorm(32))
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        self.normalized_shape = check_normalized_shape("RMSNorm", normalized_shape)
        if eps is not None and (type(plain(eps)) not in (int, float) or not eps >= 0):
            raise GraphError(f"RMSNorm: eps={eps!r:.80}; valid is a number of at least 0, or None")
        self.eps = eps
        self.weight = Parameter(self.normalized_shape, filled(1.0)) if elementwise_affine else None

    def forward(self, x: Any) -> Any:
        count = len(self.normalized_shape)
        if not isinstance(x, Value) or x.shape[-count:] != self.normalized_shape:
            shown = f"shape {x.shape}" if isinstance(x, Value) else f"{x!r:.80}"
            raise misfit(
                "RMSNorm", f"input has {shown}; valid are last axes of {self.normalized_shape}"
            )
        eps = float(np.finfo(numpy_dtype(x.dtype)).eps) if self.eps is None else float(self.eps)
        axes = tuple(range(x.type.rank - count, x.type.rank))
        squares = apply(ops.Formula(argument(0) * argument(0), title="Squares"), x)
        mean = apply(ops.Reduce("mean", axes, keepdim=True), squares)
        body = argument(0) * (1.0 / sqrt(argument(1) + eps))
        weight = self.constants("weight")
        if weight:
            body = body * argument(2)
        return apply(ops.Formula(body, tensors=2 + len(weight), title="RMSNorm"), x, mean, *weight)

    def extra_repr(self) -> str:
        affine = "" if self.weight is not None else ", elementwise_affine=False"
        return f"{self.normalized_shape}, eps={self.eps}{affine}"
