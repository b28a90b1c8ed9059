"""Layers that divide by sizes of neighbours, without means."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, sqrt
from minidnn.graph.ir import Value
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import apply
from minidnn.graph.types import numpy_dtype, plain
from minidnn.graph.window import WindowAxis, average_window
from minidnn.layers.arguments import check_count, check_normalized_shape, misfit
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import Parameter, filled

__all__ = ["LocalResponseNorm", "RMSNorm"]


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
