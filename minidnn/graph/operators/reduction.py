"""Softmax and its logarithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.graph.operator import Reduction
from minidnn.graph.types import TensorType

__all__ = ["LogSoftmax", "Softmax"]


@dataclass(frozen=True)
class _AlongDim(Reduction):
    """What :class:`Softmax` and :class:`LogSoftmax` share.  Neither is a kind of the other."""

    dim: int = -1

    def __post_init__(self) -> None:
        self.require_int("dim", self.dim)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = self.operands(inputs)
        self.require_float(x)
        self.require(
            -x.rank <= self.dim < x.rank,
            f"dim={self.dim} is not an axis of the input {x.shape}; "
            f"valid are {-x.rank} to {x.rank - 1}",
        )
        return (x,)

    def _shifted(self, x: np.ndarray) -> Any:
        # NumPy adds in an order that depends on strides: equal inputs must give equal bits.
        x = np.ascontiguousarray(x, np.result_type(x.dtype, np.float32))
        return x - x.max(axis=self.dim, keepdims=True, initial=-np.inf)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 17 * inputs[0].size


@dataclass(frozen=True)
class Softmax(_AlongDim):
    """``exp(x - max) / sum(exp(x - max))`` along ``dim``."""

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        with np.errstate(all="ignore"):
            powers = np.exp(self._shifted(x))
            out = powers / powers.sum(axis=self.dim, keepdims=True)
        return (out.astype(x.dtype, copy=False),)


@dataclass(frozen=True)
class LogSoftmax(_AlongDim):
    """``x - max - log(sum(exp(x - max)))`` along ``dim``."""

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        with np.errstate(all="ignore"):
            shifted = self._shifted(x)
            out = shifted - np.log(np.exp(shifted).sum(axis=self.dim, keepdims=True))
        return (out.astype(x.dtype, copy=False),)
