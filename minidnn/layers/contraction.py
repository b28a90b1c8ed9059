"""Convolutions, transposed convolutions and linear layers.

Arguments, initialization and names of parameters are PyTorch's.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Any, cast

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.operator import check_pair
from minidnn.graph.trace import apply
from minidnn.graph.transposed import transposed_convolution
from minidnn.layers.arguments import check_channels, check_count, check_numbers, check_rank, misfit
from minidnn.layers.layer import Layer
from minidnn.layers.padding import MODES, padded
from minidnn.layers.parameter import Parameter, within

__all__ = [
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Linear",
]


Pair = tuple[int, int]


class _Channels(Layer):
    """The base of all convolutions: channels in groups, and arguments for ``axes`` spatial axes."""

    axes: int
    kernel_size: tuple[int, ...]

    def _take_channels(self, in_channels: int, out_channels: int, groups: int) -> None:
        """Sets the numbers of channels and groups; GraphError if groups do not divide both."""
        name = type(self).__name__
        self.in_channels = check_count(name, "in_channels", in_channels)
        self.out_channels = check_count(name, "out_channels", out_channels)
        self.groups = check_count(name, "groups", groups)
        for argument, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if channels % self.groups:
                raise GraphError(
                    f"{name}: groups={groups} does not divide {argument}={channels}; "
                    "valid is a common divisor of in_channels and out_channels"
                )

    def _numbers(self, name: str, value: Any, least: int) -> tuple[int, ...]:
        """An argument as one int for each spatial axis."""
        return tuple(check_numbers(type(self).__name__, name, value, self.axes, least))

    def _add_parameters(self, first: int, second: int, bias: bool) -> None:
        """Adds ``weight`` (first, second / groups, *kernel_size) and, if asked for, ``bias``, both
        drawn from PyTorch's interval."""
        shape = (first, second // self.groups, *self.kernel_size)
        initializer = within(1 / sqrt(prod(shape[1:])))
        self.weight = Parameter(shape, initializer)
        self.bias = Parameter((self.out_channels,), initializer) if bias else None


class _Conv(_Channels):
    """The base of ordinary convolutions: arguments, parameters, and padding."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
    ) -> None:
        name = type(self).__name__
        self._take_channels(in_channels, out_channels, groups)
        self.kernel_size = self._numbers("kernel_size", kernel_size, 1)
        if padding_mode not in MODES:
            valid = ", ".join(map(repr, MODES))
            raise GraphError(f"{name}: padding_mode={padding_mode!r:.80}; valid are {valid}")
        self.padding_mode = padding_mode
        self.stride = self._numbers("stride", stride, 1)
        self.dilation = self._numbers("dilation", dilation, 1)
        self.padding = self._padding(padding, self.stride, self.dilation)
        pads = self.padding if padding_mode == "zeros" else ((0, 0),) * self.axes
        rows: tuple[int, ...] = (1,) * (2 - self.axes)  # one axis: an image of one row
        above = ((0, 0),) * (2 - self.axes)
        self.op = ops.Conv2d(
            cast("Pair", (*rows, *self.stride)),
            cast("tuple[Pair, Pair]", (*above, *pads)),
            cast("Pair", (*rows, *self.dilation)),
            self.groups,
        )
        self._add_parameters(self.out_channels, self.in_channels, bias)

    def _padding(
        self, padding: Any, stride: tuple[int, ...], dilation: tuple[int, ...]
    ) -> tuple[Pair, ...]:
        """The padding of each spatial axis as (before, after)."""
        name = type(self).__name__
        match padding:
            case "valid":
                return ((0, 0),) * self.axes
            case "same":
                if stride != (1,) * self.axes:
                    raise GraphError(
                        f"{name}: padding='same' with stride={stride}; valid is stride 1"
                    )
                # The odd element of an odd total goes to the end, as in PyTorch.
                totals = [d * (k - 1) for d, k in zip(dilation, self.kernel_size, strict=True)]
                return tuple((total // 2, total - total // 2) for total in totals)
            case str():
                raise GraphError(
                    f"{name}: padding={padding!r}; valid are 'same', 'valid', an int or pairs of "
                    "ints"
                )
        return tuple((n, n) for n in self._numbers("padding", padding, 0))

    def _padded(self, x: Any) -> Any:
        """The input of the convolution itself, with any padding other than zeros added."""
        if self.padding_mode == "zeros":
            return x
        return padded(type(self).__name__, x, self.padding, MODES[self.padding_mode])

    def extra_repr(self) -> str:
        shown = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        ones = (1,) * self.axes
        shown += [f"stride={self.stride}"] * (self.stride != ones)
        shown += [f"padding={self.padding}"] * any(map(any, self.padding))
        shown += [f"dilation={self.dilation}"] * (self.dilation != ones)
        shown += [f"groups={self.groups}"] * (self.groups != 1)
        shown += [f"padding_mode={self.padding_mode}"] * (self.padding_mode != "zeros")
        shown += ["bias=False"] * (self.bias is None)
        return ", ".join(shown)


class Conv1d(_Conv):
    """1-d cross-correlation of (N, C, L), over the columns of images of one row.

    Parameters are ``weight`` (O, C / groups, K) and ``bias`` (O,), drawn as those of
    :class:`Conv2d`.

    Args:
        in_channels: channels of the input, C.
        out_channels: channels of the output, O.
        kernel_size: elements of a window, K.
        stride: the step from one output's window to the next.
        padding: elements added on either side, "same" (stride 1) or "valid".
        dilation: the step from one element of a window to the next.
        groups: the number of groups of channels, each with filters of its own.
        bias: whether there is a bias.
        padding_mode: "zeros", "reflect", "replicate" or "circular".

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv1d(4, 8, 3, padding="same"), ReLU())
    """

    axes = 1

    def forward(self, x: Any) -> Any:
        check_rank("Conv1d", x, 3)
        x = self._padded(x)
        weight = self.reshaped("weight", (*self.weight.type.shape[:2], 1, *self.kernel_size))
        images = apply(ops.View((*x.shape[:2], 1, x.shape[2])), x)
        out = apply(self.op, images, weight, *self.constants("bias"))
        return apply(ops.View((*out.shape[:2], out.shape[3])), out)


class Conv2d(_Conv):
    """2-d cross-correlation of (N, C, H, W).

    Parameters ``weight`` (O, C / groups, KH, KW) and ``bias`` (O,) are drawn uniformly within 1 /
    sqrt(C / groups * KH * KW), as PyTorch does.

    Args:
        in_channels: channels of the input, C.
        out_channels: channels of the output, O.
        kernel_size: rows and columns of a window, (KH, KW), or one number for both.
        stride: the step from one output's window to the next.
        padding: elements added on either side, one number, a pair for (rows, columns), a pair of
            pairs ((top, bottom), (left, right)), "same" (stride 1) or "valid".
        dilation: the step from one element of a window to the next.
        groups: the number of groups of channels, each with filters of its own;
            ``in_channels`` makes it depthwise.
        bias: whether there is a bias.
        padding_mode: "zeros", "reflect", "replicate" or "circular".

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv2d(3, 64, 7, stride=2, padding=3, bias=False), BatchNorm2d(64))
    """

    axes = 2

    def _numbers(self, name: str, value: Any, least: int) -> tuple[int, ...]:
        return check_pair("Conv2d", name, value, least)

    def _padding(
        self, padding: Any, stride: tuple[int, ...], dilation: tuple[int, ...]
    ) -> tuple[Pair, ...]:
        match padding:
            case ((_, _) as rows, (_, _) as columns):
                return (
                    check_pair("Conv2d", "padding for rows", tuple(rows), 0),
                    check_pair("Conv2d", "padding for columns", tuple(columns), 0),
                )
        return super()._padding(padding, stride, dilation)

    def forward(self, x: Any) -> Any:
        if self.padding_mode != "zeros":
            check_rank("Conv2d", x, 4)
        return apply(self.op, self._padded(x), *self.constants("weight", "bias"))


class Linear(Layer):
    """``x @ weight.T + bias`` over the last axis.

    Parameters ``weight`` (out_features, in_features) and ``bias`` (out_features,) are drawn
    uniformly within 1 / sqrt(in_features), as PyTorch does.

    Args:
        in_features: the size of the input's last axis.
        out_features: that of the output's.
        bias: whether there is a bias.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Flatten(), Linear(64, 10))
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.in_features = check_count("Linear", "in_features", in_features)
        self.out_features = check_count("Linear", "out_features", out_features)
        initializer = within(1 / sqrt(in_features))
        self.weight = Parameter((out_features, in_features), initializer)
        self.bias = Parameter((out_features,), initializer) if bias else None

    def forward(self, x: Any) -> Any:
        return apply(ops.Linear(), x, *self.constants("weight", "bias"))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}" + ("" if self.bias else ", bias=False")


class _ConvTranspose(_Channels):
    """The base of transposed convolutions."""

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
        self._take_channels(in_channels, out_channels, groups)
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
        self._add_parameters(self.in_channels, self.out_channels, bias)

    def forward(self, x: Any) -> Any:
        name = type(self).__name__
        check_rank(name, x, self.axes + 2)
        check_channels(name, x, self.in_channels)
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
        stride: the step from one input's window to the next.
        padding: elements that the output lacks on either side.
        output_padding: elements that it has more at its end.
        groups: the number of groups of channels, each with filters of its own.
        bias: whether there is a bias.
        dilation: the step from one element of a window to the next.
        padding_mode: only "zeros" is valid.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv2d(3, 8, 3, 2, 1), ConvTranspose2d(8, 3, 4, 2, 1))
    """

    axes = 2
