"""Convolution and linear layers, with PyTorch's arguments, parameter names and initialization."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.operator import check_pair
from minidnn.graph.trace import apply
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import Initializer, Parameter

__all__ = ["Conv2d", "Linear"]

Pair = tuple[int, int]


def _uniform(bound: float) -> Initializer:
    def initialize(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return (random.random(shape, np.float32) * 2 - 1) * np.float32(bound)

    return initialize


def _count(owner: str, name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise GraphError(f"{owner}: {name}={value!r}; valid is an int of at least 1")
    return value


class Conv2d(Layer):
    """2-d cross-correlation of (N, C, H, W).

    ``padding`` is a number of zeros, a pair for (rows, columns), a pair of pairs
    ((top, bottom), (left, right)), "same" (stride 1) or "valid".  ``groups=in_channels``
    makes it depthwise.  Parameters ``weight`` (O, C / groups, KH, KW) and ``bias`` (O,) are
    drawn uniformly within 1 / sqrt(C / groups * KH * KW), as PyTorch does.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair | tuple[Pair, Pair] | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
    ) -> None:
        self.in_channels = _count("Conv2d", "in_channels", in_channels)
        self.out_channels = _count("Conv2d", "out_channels", out_channels)
        self.kernel_size = check_pair("Conv2d", "kernel_size", kernel_size, 1)
        self.groups = _count("Conv2d", "groups", groups)
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if channels % groups:
                raise GraphError(
                    f"Conv2d: groups={groups} does not divide {name}={channels}; "
                    "valid is a common divisor of in_channels and out_channels"
                )
        if padding_mode != "zeros":
            raise GraphError(f"Conv2d: padding_mode={padding_mode!r}; valid is 'zeros'")
        stride = check_pair("Conv2d", "stride", stride, 1)
        dilation = check_pair("Conv2d", "dilation", dilation, 1)
        pads = _padding(padding, self.kernel_size, stride, dilation)
        self.op = ops.Conv2d(stride, pads, dilation, groups)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        initializer = _uniform(1 / sqrt(prod(shape[1:])))
        self.weight = Parameter(shape, initializer)
        self.bias = Parameter((out_channels,), initializer) if bias else None

    def forward(self, x: Any) -> Any:
        return apply(self.op, x, *self.constants("weight", "bias"))

    def extra_repr(self) -> str:
        bias = "" if self.bias else ", bias=False"
        op = str(self.op).removeprefix("Conv2d(").removesuffix(")")
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}" + (
            f", {op}{bias}" if op else bias
        )


def _padding(padding: Any, kernel: Pair, stride: Pair, dilation: Pair) -> tuple[Pair, Pair]:
    match padding:
        case "valid":
            return ((0, 0), (0, 0))
        case "same":
            if stride != (1, 1):
                raise GraphError(f"Conv2d: padding='same' with stride={stride}; valid is stride 1")
            total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
            top, left = (t // 2 for t in total)  # an odd one goes to the end, as in PyTorch
            return ((top, total[0] - top), (left, total[1] - left))
        case str():
            raise GraphError(
                f"Conv2d: padding={padding!r}; valid are 'same', 'valid', an int or pairs of ints"
            )
        case ((_, _) as rows, (_, _) as columns):
            return (
                check_pair("Conv2d", "padding for rows", tuple(rows), 0),
                check_pair("Conv2d", "padding for columns", tuple(columns), 0),
            )
    rows, columns = check_pair("Conv2d", "padding", padding, 0)
    return ((rows, rows), (columns, columns))


class Linear(Layer):
    """``x @ weight.T + bias`` over the last axis; ``weight`` is (out, in), ``bias`` (out,)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.in_features = _count("Linear", "in_features", in_features)
        self.out_features = _count("Linear", "out_features", out_features)
        initializer = _uniform(1 / sqrt(in_features))
        self.weight = Parameter((out_features, in_features), initializer)
        self.bias = Parameter((out_features,), initializer) if bias else None

    def forward(self, x: Any) -> Any:
        return apply(ops.Linear(), x, *self.constants("weight", "bias"))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}" + ("" if self.bias else ", bias=False")
