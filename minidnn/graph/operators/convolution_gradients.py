"""The input gradient and the weight gradient of a convolution.

The three operators are closed under differentiation: the gradients of each are the other two.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from minidnn.graph.operator import Operator
from minidnn.graph.operators.contraction import Conv2d
from minidnn.graph.types import TensorType

__all__ = ["Conv2dInputGradient", "Conv2dWeightGradient"]

Pair = tuple[int, int]


@dataclass(frozen=True)
class _Conv2dGradient(Operator):
    """The base class of both gradients, with the attributes of the convolution."""

    kind = "contraction"

    convolution: Conv2d

    def _require_fit(self, gradient: TensorType, x: TensorType, weight: TensorType) -> None:
        (output,) = self.convolution.infer(x, weight)
        self.require(
            output == gradient,
            f"gradient is {gradient}; of an input {x} and a weight {weight} valid is {output}",
        )

    def _taps(self, kernel: Pair, outputs: Pair) -> list[tuple[Pair, tuple[slice, ...]]]:
        """The taps of a kernel, each with the slices of the padded input that it multiplies."""
        rows, columns = self.convolution.axes(kernel)
        taps = []
        for y, z in np.ndindex(*kernel):
            slices = tuple(
                slice(k * a.dilation, k * a.dilation + (n - 1) * a.stride + 1, a.stride)
                for a, k, n in zip((rows, columns), (y, z), outputs, strict=True)
            )
            taps.append(((y, z), (slice(None), slice(None), *slices)))
        return taps


@dataclass(frozen=True)
class Conv2dInputGradient(_Conv2dGradient):
    """The gradient of the input, which has ``size`` rows and columns: a transposed convolution."""

    size: Pair

    operand_names = ("gradient", "weight")

    def __post_init__(self) -> None:
        self.require_pair("size", self.size, 1)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        gradient, weight = self.operands(inputs)
        self.require_float(*inputs)
        self.require_rank("gradient", gradient, 4)
        self.require_rank("weight", weight, 4)
        channels = weight.shape[1] * self.convolution.groups
        x = gradient.with_shape((gradient.shape[0], channels, *self.size))
        self._require_fit(gradient, x, weight)
        return (x,)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        gradient, weight = inputs
        compute = np.result_type(gradient.dtype, np.float32)
        batch, outputs, *sizes = gradient.shape
        _, per_group, *kernel = weight.shape
        groups, pads = self.convolution.groups, self.convolution.padding
        # Always contiguous, since the rounding of a matrix product depends on the strides.
        by_group = np.ascontiguousarray(gradient, compute).reshape(
            batch, groups, outputs // groups, -1
        )
        weight_t = weight.astype(compute, copy=False).reshape(groups, -1, per_group, *kernel)
        weight_t = np.ascontiguousarray(weight_t.transpose(3, 4, 0, 2, 1))
        extent = [n + sum(pad) for n, pad in zip(self.size, pads, strict=True)]
        padded = np.zeros((batch, groups * per_group, *extent), compute)
        with np.errstate(all="ignore"):
            for (y, z), slices in self._taps((kernel[0], kernel[1]), (sizes[0], sizes[1])):
                products = np.matmul(weight_t[y, z], by_group)
                padded[slices] += products.reshape(batch, groups * per_group, *sizes)
        (top, _), (left, _) = pads
        inside = padded[:, :, top : top + self.size[0], left : left + self.size[1]]
        return (inside.astype(gradient.dtype),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 2 * inputs[0].size * prod(inputs[1].shape[1:])


@dataclass(frozen=True)
class Conv2dWeightGradient(_Conv2dGradient):
    """The gradient of the weight, whose kernels have ``kernel`` rows and columns."""

    kernel: Pair

    operand_names = ("input", "gradient")

    def __post_init__(self) -> None:
        self.require_pair("kernel", self.kernel, 1)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, gradient = self.operands(inputs)
        self.require_float(*inputs)
        self.require_rank("input", x, 4)
        self.require_rank("gradient", gradient, 4)
        groups = self.convolution.groups
        weight = x.with_shape((gradient.shape[1], x.shape[1] // max(groups, 1), *self.kernel))
        self._require_fit(gradient, x, weight)
        return (weight,)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, gradient = inputs
        compute = np.result_type(x.dtype, np.float32)
        outputs, *sizes = gradient.shape[1:]
        groups = self.convolution.groups
        pads = ((0, 0), (0, 0), *self.convolution.padding)
        padded = np.pad(x.astype(compute, copy=False), pads)
        gradient_by_group = _in_groups(gradient.astype(compute, copy=False), groups)
        result = np.empty((groups, outputs // groups, x.shape[1] // groups, *self.kernel), compute)
        with np.errstate(all="ignore"):
            for (y, z), slices in self._taps(self.kernel, (sizes[0], sizes[1])):
                taps = _in_groups(padded[slices], groups)
                result[..., y, z] = np.matmul(gradient_by_group, taps.swapaxes(1, 2))
        return (result.reshape(outputs, -1, *self.kernel).astype(x.dtype, copy=False),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 2 * inputs[1].size * prod(outputs[0].shape[1:])


def _in_groups(x: np.ndarray, groups: int) -> np.ndarray:
    """(N, C, H, W) as (groups, C / groups, N * H * W)."""
    split = x.reshape(x.shape[0], groups, -1, x.shape[2] * x.shape[3])
    return np.ascontiguousarray(split.transpose(1, 2, 0, 3)).reshape(groups, split.shape[2], -1)
