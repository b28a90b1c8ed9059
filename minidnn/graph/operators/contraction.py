"""Contractions: convolutions and linear layers, whose weight is an operand, and matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from minidnn.graph.operator import Contraction, Operator, integer_sums, is_integer_product, is_ints
from minidnn.graph.types import TensorType
from minidnn.graph.window import WindowAxis

__all__ = ["Conv2d", "Linear", "MatMul"]

Pair = tuple[int, int]


@dataclass(frozen=True)
class Conv2d(Contraction):
    """2-d cross-correlation of (N, C, H, W) with a weight (O, C / groups, KH, KW).

    ``padding`` is ((top, bottom), (left, right)) zeros.
    """

    stride: Pair = (1, 1)
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)
    groups: int = 1
    zero: int = 0
    dtype: str | None = None

    def __post_init__(self) -> None:
        self.require_pair("stride", self.stride, 1)
        self.require_pair("dilation", self.dilation, 1)
        pads = self.padding
        self.require(
            isinstance(pads, tuple)
            and len(pads) == 2
            and all(is_ints(pair, 0) and len(pair) == 2 for pair in pads),
            f"padding={pads!r}; valid is ((top, bottom), (left, right)), ints of at least 0",
        )
        self.require_int("groups", self.groups)

    def axes(self, kernel: Pair) -> tuple[WindowAxis, WindowAxis]:
        """The windows over rows and columns of a weight whose kernels have the size ``kernel``."""
        rows, columns = (
            WindowAxis(k, s, p, d)
            for k, s, p, d in zip(kernel, self.stride, self.padding, self.dilation, strict=True)
        )
        return rows, columns

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, weight, *bias = self.operands(inputs)
        dtype = self.result_dtype(*inputs)
        self.require_rank("input", x, 4)
        self.require_rank("weight", weight, 4)
        out_channels, per_group, *kernel = weight.shape
        # Messages are formatted only where something is wrong, as that takes longer than the
        # checks.
        if self.groups < 1 or out_channels % self.groups:
            raise self.fail(
                f"groups={self.groups} does not divide the weight's {out_channels} output "
                "channels; valid is a divisor of at least 1"
            )
        if x.shape[1] != per_group * self.groups:
            raise self.fail(
                f"input has {x.shape[1]} channels (shape {x.shape}), but the weight "
                f"{weight.shape} with groups={self.groups} takes {per_group * self.groups}"
                f"{_advice_on_channels(x.shape, per_group * self.groups)}"
            )
        if bias and bias[0].shape != (out_channels,):
            raise self.fail(f"bias has shape {bias[0].shape}; valid is ({out_channels},)")
        sizes = []
        for axis, size in zip(self.axes((kernel[0], kernel[1])), x.shape[2:], strict=True):
            sizes.append(axis.output_size(size))
            if axis.kernel < 1 or sizes[-1] < 1:
                raise self.fail(
                    f"a kernel that reaches over {axis.reach} positions is larger than the padded "
                    f"input of {size + sum(axis.padding)} (input {x.shape}, weight "
                    f"{weight.shape}); use more padding or a smaller kernel_size or dilation"
                )
        return (TensorType((x.shape[0], out_channels, *sizes), dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, weight, *bias = inputs
        if x.dtype.kind in "iu":
            sums = integer_sums(self._sums, x, weight, self.zero)
            return (sums + bias[0][:, None, None] if bias else sums,)
        dtype = np.result_type(x.dtype, self.dtype or x.dtype)
        compute = np.result_type(dtype, np.float32)
        with np.errstate(all="ignore"):
            result = self._sums(x.astype(compute, copy=False), weight.astype(compute, copy=False))
            if bias:
                result += bias[0].astype(compute)[:, None, None]
        return (result.astype(dtype, copy=False),)

    def _sums(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The convolution without bias, accumulated in the operands' dtype."""
        batch, channels = x.shape[:2]
        out_channels, per_group, kh, kw = weight.shape
        rows, columns = self.axes((kh, kw))
        height, width = rows.output_size(x.shape[2]), columns.output_size(x.shape[3])
        padded = np.pad(x, ((0, 0), (0, 0), *self.padding))
        grouped = weight.reshape(self.groups, -1, per_group, kh, kw)
        out = np.zeros((batch, self.groups, out_channels // self.groups, height * width), x.dtype)
        for y in range(kh):
            for z in range(kw):
                top, left = y * rows.dilation, z * columns.dilation
                tap_inputs = padded[
                    :,
                    :,
                    top : top + (height - 1) * rows.stride + 1 : rows.stride,
                    left : left + (width - 1) * columns.stride + 1 : columns.stride,
                ].reshape(batch, self.groups, channels // self.groups, height * width)
                out += np.matmul(grouped[:, :, :, y, z], tap_inputs)
        return out.reshape(batch, out_channels, height, width)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        per_output = 2 * int(np.prod(inputs[1].shape[1:], dtype=np.int64))
        return outputs[0].size * (per_output + (len(inputs) > 2))


@dataclass(frozen=True)
class Linear(Contraction):
    """``x @ weight.T + bias`` over the last axis of (..., F) with a weight (O, F)."""

    zero: int = 0
    dtype: str | None = None

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, weight, *bias = self.operands(inputs)
        dtype = self.result_dtype(*inputs)
        self.require_rank("weight", weight, 2)
        self.require(
            x.rank >= 1 and x.shape[-1] == weight.shape[1],
            f"input of shape {x.shape} has {x.shape[-1] if x.shape else 'no'} features, but the "
            f"weight {weight.shape} takes {weight.shape[1]}{_advice_on_features(x, weight)}",
        )
        if bias:
            self.require(
                bias[0].shape == weight.shape[:1],
                f"bias has shape {bias[0].shape}; valid is {weight.shape[:1]}",
            )
        return (TensorType((*x.shape[:-1], weight.shape[0]), dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, weight, *bias = inputs
        if x.dtype.kind in "iu":
            sums = integer_sums(np.matmul, x, weight.T, self.zero)
            return (sums + bias[0] if bias else sums,)
        compute = np.result_type(x.dtype, np.float32)
        with np.errstate(all="ignore"):
            # Strides may decide the order of additions: equal inputs must give equal bits.
            out = np.ascontiguousarray(x, compute) @ weight.astype(compute, copy=False).T
            if bias:
                out += bias[0].astype(compute)
        return (out.astype(np.result_type(x.dtype, self.dtype or x.dtype), copy=False),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return outputs[0].size * (2 * inputs[1].shape[1] + (len(inputs) > 2))


@dataclass(frozen=True)
class MatMul(Operator):
    """``a @ b`` of (..., M, K) and (..., K, N); the axes before these broadcast.

    Of integers (int8, uint8, int32) the accumulators are int32, which wrap.
    """

    kind = "contraction"
    operand_names = ("a", "b")

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        a, b = self.operands(inputs)
        is_integer = is_integer_product(a, b)
        if not is_integer:
            self.require_float(*inputs)
        self.require(
            a.rank >= 2 and b.rank >= 2 and a.shape[-1] == b.shape[-2],
            f"operands have shapes {a.shape} and {b.shape}; valid are (..., M, K) and (..., K, N)",
        )
        try:
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            raise self.fail(
                f"operands have shapes {a.shape} and {b.shape}, whose first axes do not broadcast; "
                "valid are equal sizes, or 1"
            ) from None
        shape = (*batch, a.shape[-2], b.shape[-1])
        return (TensorType(shape, "int32" if is_integer else a.dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dtype = inputs[0].dtype
        if dtype.kind in "iu":
            return (integer_sums(np.matmul, inputs[0], inputs[1]),)
        compute = np.result_type(dtype, np.float32)
        with np.errstate(all="ignore"):
            # Strides may decide the order of additions: equal inputs must give equal bits.
            a, b = (np.ascontiguousarray(x, compute).reshape(x.shape) for x in inputs)
            return (np.matmul(a, b).astype(dtype, copy=False),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 2 * outputs[0].size * inputs[0].shape[-1]


def _advice_on_channels(shape: tuple[int, ...], channels: int) -> str:
    """Advice for an error, if an image seems to have its channels last."""
    if shape[-1] != channels:
        return ""
    channels_first = (shape[0], shape[-1], *shape[1:-1])
    return f"; its channels seem to be last, and valid is channels first, {channels_first}"


def _advice_on_features(x: TensorType, weight: TensorType) -> str:
    """Advice for an error, if a linear layer's input has another number of features."""
    flat = prod(x.shape[1:])
    if x.rank > 2 and flat == weight.shape[1]:
        return "; is a Flatten in front of it missing?"
    if x.rank > 2:
        return f"; flattened, the input would have {flat} features a sample"
    return "; valid is a layer for so many features, or an input of another size"
