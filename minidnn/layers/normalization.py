"""Batch normalization with stored statistics."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply, current_trace
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import LazyArray, Parameter

__all__ = ["BatchNorm2d"]


def _zeros(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _ones(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.ones(shape, np.float32)


class BatchNorm2d(Layer):
    """``(x - running_mean) / sqrt(running_var + eps) * weight + bias`` per channel.

    ``momentum`` is accepted for compatibility; statistics are stored, never updated.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        if type(num_features) is not int or num_features < 1:
            raise GraphError(
                f"BatchNorm2d: num_features={num_features!r}; valid is an int of at least 1"
            )
        if not track_running_stats:
            raise GraphError(
                "BatchNorm2d: track_running_stats=False; valid is True, "
                "as inference needs stored statistics"
            )
        self.num_features = num_features
        self.op = ops.BatchNorm(eps)
        self.affine = affine
        shape = (num_features,)
        if affine:
            self.weight = Parameter(shape, _ones)
            self.bias = Parameter(shape, _zeros)
        self.running_mean = Parameter(shape, _zeros)
        self.running_var = Parameter(shape, _ones)
        self.num_batches_tracked = Parameter((), _zeros, "int64", optional=True)

    def forward(self, x: Any) -> Any:
        if isinstance(x, Value) and x.type.rank != 4:
            raise GraphError(
                f"BatchNorm2d: input has shape {x.shape} of rank {x.type.rank}; valid is rank 4"
            )
        names = ("weight", "bias") if self.affine else ()
        scale = self.constants(*names) if names else self._unit_scale()
        return apply(self.op, x, *scale, *self.constants("running_mean", "running_var"))

    def _unit_scale(self) -> tuple[Value, ...]:
        """The scale 1 and shift 0 of ``affine=False``."""
        trace, type = current_trace(), self.running_mean.type
        prefix = f"{trace.path}." if trace.path else ""
        one, zero = (LazyArray(partial(np.full, type.shape, v, np.float32)) for v in (1, 0))
        return (
            trace.constant((self, "weight"), f"{prefix}weight", type, one),
            trace.constant((self, "bias"), f"{prefix}bias", type, zero),
        )

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.op.eps}" + ("" if self.affine else ", affine=False")
