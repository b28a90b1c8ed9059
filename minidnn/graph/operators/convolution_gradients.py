"""The two gradients of a convolution.  With the convolution they are closed: each one's gradients
are the two others."""

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
    """What both share: what they are the gradient of."""

    kind = "contraction"

    convolution: Conv2d

    def _require_fit(self, gradient: TensorType, x: TensorType, weight: TensorType) -> None:
        (output,) = self.convolution.infer(x, weight)
        self.require(
            output == gradient,
            f"gradient is {gradient}; of an input {x} and a weight {weight} valid is {output}",
        )

    def _taps(self, kernel: Pair, outputs: Pair) -> list[tuple[Pair, tuple[slice, ...]]]:
        """The taps of a kernel, and what each reads of the padded input."""
        rows, columns = self.convolution.axes(kernel)
        found = []
        for y, z in np.ndindex(*kernel):
            places = tuple(
                slice(k * a.dilation, k * a.dilation + (n - 1) * a.stride + 1, a.stride)
                for a, k, n in zip((rows, columns), (y, z), outputs, strict=True)
            )
            found.append(((y, z), (slice(None), slice(None), *places)))
        return found


@dataclass(frozen=True)
class Conv2dInputGradient(_Conv2dGradient):
    """The gradient for the input, of ``size`` rows and columns: a transposed convolution."""

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
        # In one order, since how a product of matrices is rounded depends on how they lie.
        each = np.ascontiguousarray(gradient, compute).reshape(batch, groups, outputs // groups, -1)
        turned = weight.astype(compute, copy=False).reshape(groups, -1, per_group, *kernel)
        turned = np.ascontiguousarray(turned.transpose(3, 4, 0, 2, 1))
        extent = [n + sum(pad) for n, pad in zip(self.size, pads, strict=True)]
        found = np.zeros((batch, groups * per_group, *extent), compute)
        with np.errstate(all="ignore"):
            for (y, z), places in self._taps((kernel[0], kernel[1]), (sizes[0], sizes[1])):
                part = np.matmul(turned[y, z], each)
                found[places] += part.reshape(batch, groups * per_group, *sizes)
        (top, _), (left, _) = pads
        inside = found[:, :, top : top + self.size[0], left : left + self.size[1]]
        return (inside.astype(gradient.dtype),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 2 * inputs[0].size * prod(inputs[1].shape[1:])


@dataclass(frozen=True)
class Conv2dWeightGradient(_Conv2dGradient):
    """The gradient for the weight, of ``kernel`` rows and columns."""

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
        each = _in_groups(gradient.astype(compute, copy=False), groups)
        found = np.empty((groups, outputs // groups, x.shape[1] // groups, *self.kernel), compute)
        with np.errstate(all="ignore"):
            for (y, z), places in self._taps(self.kernel, (sizes[0], sizes[1])):
                taken = _in_groups(padded[places], groups)
                found[..., y, z] = np.matmul(each, taken.swapaxes(1, 2))
        return (found.reshape(outputs, -1, *self.kernel).astype(x.dtype, copy=False),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return 2 * inputs[1].size * prod(outputs[0].shape[1:])


def _in_groups(x: np.ndarray, groups: int) -> np.ndarray:
    """(N, C, H, W) as (groups, C / groups, N * H * W)."""
    split = x.reshape(x.shape[0], groups, -1, x.shape[2] * x.shape[3])
    return np.ascontiguousarray(split.transpose(1, 2, 0, 3)).reshape(groups, split.shape[2], -1)
