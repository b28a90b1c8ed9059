"""Scaled dot-product attention, and its gradient, as single operators."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType

__all__ = ["Attention", "AttentionGradient"]


@dataclass(frozen=True)
class Attention(Operator):
    """``softmax(scale * q @ k.T) @ v`` for each matrix of a batch, and the log-sum-exp of each row
    of scores, from which the gradient recomputes the weights.

    Queries are (..., L, D), keys (..., S, D) and values (..., S, E), of one batch; the results are
    (..., L, E) and (..., L, 1).  The latter has at least float32.

    Source: Vaswani et al., arXiv:1706.03762; Dao et al., arXiv:2205.14135.
    """

    scale: float

    kind = "contraction"
    operand_names = ("query", "key", "value")

    def __post_init__(self) -> None:
        self.require_number("scale", self.scale)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        q, k, v = self.operands(inputs)
        self.require_float(*inputs)
        shapes = q.shape, k.shape, v.shape
        fits = (
            min(map(len, shapes)) >= 2
            and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
            and (q.shape[-1], k.shape[-2]) == (k.shape[-1], v.shape[-2])
        )
        self.require(
            fits,
            f"operands have shapes {shapes[0]}, {shapes[1]} and {shapes[2]}; valid are (..., L, D),"
            " (..., S, D) and (..., S, E) of one batch",
        )
        wide = "float64" if q.dtype == "float64" else "float32"
        return q.with_shape((*q.shape[:-1], v.shape[-1])), TensorType((*q.shape[:-1], 1), wide)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dtype = inputs[0].dtype
        q, k, v = (x.astype(np.result_type(x, np.float32), copy=False) for x in inputs)
        with np.errstate(all="ignore"):
            scores = _product(q * q.dtype.type(self.scale), k.swapaxes(-1, -2))
            row_max = scores.max(-1, keepdims=True, initial=-np.inf)
            exponentials = np.exp(scores - row_max)
            row_sum = exponentials.sum(-1, keepdims=True)
            return _product(exponentials / row_sum, v).astype(dtype, copy=False), row_max + np.log(
                row_sum
            )

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 2 * _pairs(*inputs[:2]) * (inputs[0].shape[-1] + inputs[2].shape[-1])


@dataclass(frozen=True)
class AttentionGradient(Operator):
    """The gradients of queries, keys and values of :class:`Attention`.

    Its operands are these three, both results of the attention, and the gradient of the first.
    """

    scale: float

    kind = "contraction"
    operand_names = ("query", "key", "value", "result", "logarithms", "gradient")

    def __post_init__(self) -> None:
        self.require_number("scale", self.scale)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        q, k, v, y, logs, g = self.operands(inputs)
        expected = Attention(self.scale).infer(q, k, v)
        self.require(
            (y, logs) == expected and g == y,
            f"result, logarithms and gradient are {y}, {logs} and {g}; valid are {expected[0]}, "
            f"{expected[1]} and {expected[0]}",
        )
        return q, k, v

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dtype = inputs[0].dtype
        wide = (x.astype(np.result_type(x, np.float32), copy=False) for x in inputs)
        q, k, v, y, logs, g = wide
        with np.errstate(all="ignore"):
            scaled = q * q.dtype.type(self.scale)
            weights = np.exp(_product(scaled, k.swapaxes(-1, -2)) - logs)
            row_sums = np.ascontiguousarray(g * y).sum(-1, keepdims=True)
            by_scores = weights * (_product(g, v.swapaxes(-1, -2)) - row_sums)
            gradients = (
                _product(by_scores, k) * q.dtype.type(self.scale),
                _product(by_scores.swapaxes(-1, -2), scaled),
                _product(weights.swapaxes(-1, -2), g),
            )
        return tuple(x.astype(dtype, copy=False) for x in gradients)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 2 * _pairs(*inputs[:2]) * (3 * inputs[0].shape[-1] + 2 * inputs[2].shape[-1])


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The matrix product of contiguous copies: strides may decide the order of additions, and equal
    operands must give equal bits."""
    return np.asarray(np.ascontiguousarray(a) @ np.ascontiguousarray(b))


def _pairs(q: TensorType, k: TensorType) -> int:
    """The number of pairs of a query and a key, in all batches."""
    return prod(q.shape[:-1]) * k.shape[-2]
