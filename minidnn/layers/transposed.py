"""Transposed convolutions, with PyTorch's arguments, parameter names and initialization."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.transposed import transposed_convolution
from minidnn.layers.arguments import check_count, check_numbers, check_rank, misfit
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import Parameter, within

__all__ = ["ConvTranspose1d", "ConvTranspose2d"]


class _ConvTranspose(Layer):
    axes: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
    ) -> None:
        name = type(self).__name__
        self.in_channels = check_count(name, "in_channels", in_channels)
        self.out_channels = check_count(name, "out_channels", out_channels)
        self.groups = check_count(name, "groups", groups)
        for argument, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if channels % groups:
                raise GraphError(
                    f"{name}: groups={groups} does not divide {argument}={channels}; "
                    "valid is a common divisor of in_channels and out_channels"
                )
        if padding_mode != "zeros":
            raise GraphError(f"{name}: padding_mode={padding_mode!r:.80}; valid is 'zeros'")
        self.kernel_size = self._numbers("kernel_size", kernel_size, 1)
        self.stride = self._numbers("stride", stride, 1)
        self.padding = self._numbers("padding", padding, 0)
        self.output_padding = self._numbers("output_padding", output_padding, 0)
        self.dilation = self._numbers("dilation", dilation, 1)
        for extra, *steps in zip(self.output_padding, self.stride, self.dilation, strict=True):
            if extra >= max(steps):
                raise GraphError(
                    f"{name}: output_padding={output_padding} with stride={stride} and "
                    f"dilation={dilation}; valid is less than one of these, on every axis"
                )
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        initializer = within(1 / sqrt(prod(shape[1:])))
        self.weight = Parameter(shape, initializer)
        self.bias = Parameter((out_channels,), initializer) if bias else None

    def _numbers(self, name: str, value: Any, least: int) -> tuple[int, ...]:
        return tuple(check_numbers(type(self).__name__, name, value, self.axes, least))

    def forward(self, x: Any) -> Any:
        name = type(self).__name__
        check_rank(name, x, self.axes + 2)
        if x.shape[1] != self.in_channels:
            raise misfit(
                name,
                f"input has shape {x.shape} with {x.shape[1]} channels; valid are "
                f"{self.in_channels}",
            )
        pairs = zip(self.padding, self.output_padding, strict=True)
        try:
            return transposed_convolution(
                x,
                *self.constants("weight", "bias"),
                stride=self.stride,
                cut=tuple((before, before - extra) for before, extra in pairs),
                dilation=self.dilation,
                groups=self.groups,
            )
        except GraphError as error:
            raise misfit(name, str(error)) from None

    def extra_repr(self) -> str:
        shown = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        ones, zeros = (1,) * self.axes, (0,) * self.axes
        shown += [f"stride={self.stride}"] * (self.stride != ones)
        shown += [f"padding={self.padding}"] * (self.padding != zeros)
        shown += [f"output_padding={self.output_padding}"] * (self.output_padding != zeros)
        shown += [f"groups={self.groups}"] * (self.groups != 1)
        shown += [f"dilation={self.dilation}"] * (self.dilation != ones)
        shown += ["bias=False"] * (self.bias is None)
        return ", ".join(shown)


class ConvTranspose1d(_ConvTranspose):
    """1-d transposed convolution of (N, C, L), over one axis; the arguments are those of
    :class:`ConvTranspose2d`.
    """

    axes = 1


class ConvTranspose2d(_ConvTranspose):
    """2-d transposed convolution of (N, C, H, W), the gradient of a convolution for its input.

    An axis of size ``n`` becomes ``(n - 1) * stride - 2 * padding + dilation * (kernel_size - 1) +
    output_padding + 1``. Parameters are ``weight`` (C, O / groups, KH, KW) and ``bias`` (O,), drawn
    uniformly within 1 / sqrt(O / groups * KH * KW), as PyTorch does.

    Args:
        in_channels: channels of the input, C.
        out_channels: channels of the output, O.
        kernel_size: rows and columns of a window, (KH, KW), or one number for both.
        stride: from one input's window to the next.
        padding: elements that the output lacks on either side.
        output_padding: elements that it has more at its end.
        groups: into how many groups channels are split, each with filters of its own.
        bias: whether there is a bias.
        dilation: from one element of a window to the next.
        padding_mode: only "zeros" is valid.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv2d(3, 8, 3, 2, 1), ConvTranspose2d(8, 3, 4, 2, 1))
    """

    axes = 2
