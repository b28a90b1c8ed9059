"""Operators in float64 NumPy, straight from their definitions and independent of minidnn.

They are slow on purpose: plain loops over outputs, no shared code with what they judge.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Pair = tuple[int, int]


def pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else tuple(value)


def relu(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, 0.0, x)


def clip(x: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.where(x < low, low, np.where(x > high, high, x))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Each half by the form that does not overflow there."""
    falling = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + falling), falling / (1.0 + falling))


def silu(x: np.ndarray) -> np.ndarray:
    return np.where(np.isneginf(x), np.nan, x * sigmoid(x))


def elu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(x))


def gelu(x: np.ndarray) -> np.ndarray:
    """By the complementary error function, which does not cancel far below zero."""
    phi = np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2.0)), otypes=[float])
    return np.where(np.isneginf(x), np.nan, x * phi(x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    return np.where(np.isneginf(x), np.nan, x * sigmoid(2.0 * inner))


def hardsigmoid(x: np.ndarray) -> np.ndarray:
    return clip(x / 6.0 + 0.5, 0.0, 1.0)


def hardswish(x: np.ndarray) -> np.ndarray:
    return x * clip(x + 3.0, 0.0, 6.0) / 6.0


def softmax(x: np.ndarray, dim: int) -> np.ndarray:
    powers = np.exp(x - np.max(x, axis=dim, keepdims=True))
    return powers / np.sum(powers, axis=dim, keepdims=True)


def log_softmax(x: np.ndarray, dim: int) -> np.ndarray:
    out = x - np.logaddexp.reduce(x, axis=dim, keepdims=True)
    return np.where(np.isposinf(x).any(axis=dim, keepdims=True), np.nan, out)


def batch_norm(
    x: np.ndarray, eps: float, weight: Any, bias: Any, mean: np.ndarray, var: np.ndarray
) -> np.ndarray:
    out = np.empty_like(x)
    for c in range(x.shape[1]):
        scale = (1.0 if weight is None else weight[c]) / math.sqrt(var[c] + eps)
        out[:, c] = (x[:, c] - mean[c]) * scale + (0.0 if bias is None else bias[c])
    return out


def conv2d(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None,
    stride: Any = 1,
    padding: Sequence[Pair] = ((0, 0), (0, 0)),
    dilation: Any = 1,
    groups: int = 1,
) -> np.ndarray:
    """Every window of the padded input, taken whole, times the weight."""
    stride, dilation = pair(stride), pair(dilation)
    padded = np.pad(x, ((0, 0), (0, 0), *padding))
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True))
    windows = sliding_window_view(padded, reach, axis=(2, 3))
    windows = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    each, out = weight.shape[0] // groups, []
    for group in range(groups):
        taken = windows[:, group * weight.shape[1] : (group + 1) * weight.shape[1]]
        kernels = weight[group * each : (group + 1) * each]
        out.append(np.einsum("nchwyx,ocyx->nohw", taken, kernels))
    result = np.concatenate(out, axis=1)
    return result if bias is None else result + bias[:, None, None]


def pool_starts(
    size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> list[int]:
    """First positions of all windows, by walking: a window counts if it ends within the padded
    input; in ceil mode one more counts if it starts within the input or the padding before it,
    ends less than a stride beyond the padded input, and some part of that was not covered by
    the windows before."""
    reach = dilation * (kernel - 1) + 1
    starts, start = [], -padding
    while start + reach <= size + padding:
        starts.append(start)
        start += stride
    covered = starts[-1] + reach if starts else -padding
    near = start + reach - stride < size + padding
    if ceil_mode and near and covered < size + padding and start < size:
        starts.append(start)
    return starts


def max_pool2d(
    x: np.ndarray,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> np.ndarray:
    kernel, padding, dilation = pair(kernel), pair(padding), pair(dilation)
    stride = kernel if stride is None else pair(stride)
    axes = [
        [
            [p for p in range(start, start + d * k, d) if 0 <= p < size]
            for start in pool_starts(size, k, s, pad, d, ceil_mode)
        ]
        for size, k, s, pad, d in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    ]
    out = np.full((*x.shape[:2], len(axes[0]), len(axes[1])), -np.inf)
    for (i, rows), (j, columns) in itertools.product(*map(enumerate, axes)):
        for row, column in itertools.product(rows, columns):
            out[:, :, i, j] = np.fmax(out[:, :, i, j], x[:, :, row, column])
        taken = x[:, :, rows][:, :, :, columns]
        out[:, :, i, j][np.isnan(taken).any(axis=(2, 3))] = np.nan
    return out


def avg_pool2d(
    x: np.ndarray,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> np.ndarray:
    kernel, padding = pair(kernel), pair(padding)
    stride = kernel if stride is None else pair(stride)
    axes = [
        [(start, start + k) for start in pool_starts(size, k, s, pad, 1, ceil_mode)]
        for size, k, s, pad in zip(x.shape[2:], kernel, stride, padding, strict=True)
    ]
    height, width = x.shape[2:]
    out = np.empty((*x.shape[:2], len(axes[0]), len(axes[1])))
    for (i, (top, bottom)), (j, (left, right)) in itertools.product(*map(enumerate, axes)):
        inside = x[:, :, max(top, 0) : min(bottom, height), max(left, 0) : min(right, width)]
        if divisor_override is not None:
            count = divisor_override
        elif count_include_pad:
            count = (min(bottom, height + padding[0]) - top) * (
                min(right, width + padding[1]) - left
            )
        else:
            count = inside.shape[2] * inside.shape[3]
        # Rows first: the order shows where large numbers cancel.
        out[:, :, i, j] = sum(inside.sum(axis=3).transpose(2, 0, 1)) / count
    return out


def adaptive_avg_pool2d(x: np.ndarray, output: tuple[int | None, int | None]) -> np.ndarray:
    sizes = [s if o is None else o for s, o in zip(x.shape[2:], output, strict=True)]
    out = np.empty((*x.shape[:2], *sizes))
    for i, j in np.ndindex(*sizes):
        spans = [
            slice(math.floor(k * s / n), math.ceil((k + 1) * s / n))
            for k, s, n in zip((i, j), x.shape[2:], sizes, strict=True)
        ]
        out[:, :, i, j] = x[:, :, spans[0], spans[1]].mean(axis=(2, 3))
    return out
