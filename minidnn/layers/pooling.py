"""Pooling layers, with PyTorch's arguments."""

from __future__ import annotations

from typing import Any

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, equal, where
from minidnn.graph.operator import check_pair
from minidnn.graph.rearranged import adaptive_max
from minidnn.graph.trace import apply
from minidnn.graph.types import plain
from minidnn.layers.activations import OperatorLayer
from minidnn.layers.arguments import check_numbers, check_rank
from minidnn.layers.layer import Layer

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "LPPool1d",
    "LPPool2d",
    "MaxPool1d",
    "MaxPool2d",
]

Size = int | tuple[int, int]


class MaxPool2d(OperatorLayer):
    """Maximum over windows of (N, C, H, W). Padding never wins.

    Args:
        kernel_size: rows and columns of a window, or one number for both.
        stride: the step from one window to the next; None is ``kernel_size``.
        padding: rows and columns added on either side, at most half a window.
        dilation: the step from one element of a window to the next.
        return_indices: only False is valid.
        ceil_mode: whether windows that begin inside and end outside count.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv2d(3, 8, 3), ReLU(), MaxPool2d(2))
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        if return_indices:
            raise GraphError("MaxPool2d: return_indices=True; valid is False")
        kernel = check_pair("MaxPool2d", "kernel_size", kernel_size, 1)
        super().__init__(
            ops.MaxPool2d(
                kernel,
                kernel if stride is None else check_pair("MaxPool2d", "stride", stride, 1),
                check_pair("MaxPool2d", "padding", padding, 0),
                check_pair("MaxPool2d", "dilation", dilation, 1),
                ceil_mode,
            )
        )


class AvgPool2d(OperatorLayer):
    """Average over windows of (N, C, H, W).

    Args:
        kernel_size: rows and columns of a window, or one number for both.
        stride: the step from one window to the next; None is ``kernel_size``.
        padding: rows and columns of zeros added on either side, at most half a window.
        ceil_mode: whether windows that begin inside and end outside count.
        count_include_pad: whether sums are divided by the size of the window, or by the number of
            its elements that are no padding.
        divisor_override: what sums are divided by instead.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv2d(3, 8, 3), AvgPool2d(3, stride=2, padding=1))
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        kernel = check_pair("AvgPool2d", "kernel_size", kernel_size, 1)
        super().__init__(
            ops.AvgPool2d(
                kernel,
                kernel if stride is None else check_pair("AvgPool2d", "stride", stride, 1),
                check_pair("AvgPool2d", "padding", padding, 0),
                ceil_mode,
                count_include_pad,
                plain(divisor_override),
            )
        )


class AdaptiveAvgPool2d(OperatorLayer):
    """Average over windows chosen for an output of ``output_size``; None keeps a size.

    >>> net = Sequential(Conv2d(3, 8, 3), AdaptiveAvgPool2d(1), Flatten(), Linear(8, 10))
    """

    def __init__(self, output_size: int | tuple[int | None, int | None] | None) -> None:
        size = plain(output_size)
        pair: Any = size if isinstance(size, (tuple, list)) else (size,) * 2
        super().__init__(ops.AdaptiveAvgPool2d(tuple(pair)))


class _Rows(Layer):
    """The base of layers of (N, C, L) that run a 2-d operator on images of one row."""

    def __init__(self, op: Any) -> None:
        self.op = op

    def forward(self, x: Any) -> Any:
        check_rank(type(self).__name__, x, 3)
        pooled = self._pooled(apply(ops.View((*x.shape[:2], 1, x.shape[2])), x))
        return apply(ops.View((*pooled.shape[:2], pooled.shape[3])), pooled)

    def _pooled(self, images: Any) -> Any:
        """Pools images of one row."""
        return apply(self.op, images)

    def __repr__(self) -> str:
        return str(self.op).replace("2d", "1d", 1)


def _one(owner: str, name: str, value: Any, least: int) -> int:
    """An argument as an int, from an int or a sequence of one."""
    return check_numbers(owner, name, value, 1, least)[0]


class MaxPool1d(_Rows):
    """Maximum over windows of (N, C, L). Padding never wins.

    Args:
        kernel_size: elements of a window.
        stride: the step from one window to the next; None is ``kernel_size``.
        padding: elements added on either side, at most half a window.
        dilation: the step from one element of a window to the next.
        return_indices: only False is valid.
        ceil_mode: whether windows that begin inside and end outside count.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv1d(3, 8, 3), ReLU(), MaxPool1d(2))
    """

    def __init__(
        self,
        kernel_size: int,
        stride: int | None = None,
        padding: int = 0,
        dilation: int = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        if return_indices:
            raise GraphError("MaxPool1d: return_indices=True; valid is False")
        kernel = _one("MaxPool1d", "kernel_size", kernel_size, 1)
        step = kernel if stride is None else _one("MaxPool1d", "stride", stride, 1)
        pad = _one("MaxPool1d", "padding", padding, 0)
        dilated = _one("MaxPool1d", "dilation", dilation, 1)
        super().__init__(ops.MaxPool2d((1, kernel), (1, step), (0, pad), (1, dilated), ceil_mode))


class AvgPool1d(_Rows):
    """Average over windows of (N, C, L).

    Args:
        kernel_size: elements of a window.
        stride: the step from one window to the next; None is ``kernel_size``.
        padding: zeros added on either side, at most half a window.
        ceil_mode: whether windows that begin inside and end outside count.
        count_include_pad: whether sums are divided by the size of the window, or by the number of
            its elements that are no padding.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv1d(3, 8, 3), AvgPool1d(3, stride=2, padding=1))
    """

    def __init__(
        self,
        kernel_size: int,
        stride: int | None = None,
        padding: int = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        kernel = _one("AvgPool1d", "kernel_size", kernel_size, 1)
        step = kernel if stride is None else _one("AvgPool1d", "stride", stride, 1)
        pad = _one("AvgPool1d", "padding", padding, 0)
        op = ops.AvgPool2d((1, kernel), (1, step), (0, pad), ceil_mode, count_include_pad)
        super().__init__(op)


class AdaptiveAvgPool1d(_Rows):
    """Average over windows of (N, C, L) chosen for an output of ``output_size``; None keeps a size.

    >>> net = Sequential(Conv1d(3, 8, 3), AdaptiveAvgPool1d(1), Flatten(), Linear(8, 10))
    """

    def __init__(self, output_size: int | None) -> None:
        if output_size is not None:
            output_size = _one("AdaptiveAvgPool1d", "output_size", output_size, 1)
        super().__init__(ops.AdaptiveAvgPool2d((1, output_size)))


class AdaptiveMaxPool2d(Layer):
    """Maximum over windows of (N, C, H, W) chosen for an output of ``output_size``.

    Args:
        output_size: rows and columns, or one number for both; None keeps a size.
        return_indices: only False is valid.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv2d(3, 8, 3), AdaptiveMaxPool2d((2, None)))
    """

    _shown = ("output_size",)

    def __init__(
        self,
        output_size: int | tuple[int | None, int | None] | None,
        return_indices: bool = False,
    ) -> None:
        if return_indices:
            raise GraphError("AdaptiveMaxPool2d: return_indices=True; valid is False")
        size = plain(output_size)
        pair: Any = size if isinstance(size, (tuple, list)) else (size,) * 2
        self.output_size = ops.AdaptiveAvgPool2d(tuple(pair)).output_size

    def forward(self, x: Any) -> Any:
        check_rank("AdaptiveMaxPool2d", x, 4)
        return adaptive_max(x, ops.AdaptiveAvgPool2d(self.output_size).sizes(x.type))


class AdaptiveMaxPool1d(_Rows):
    """Maximum over windows of (N, C, L) chosen for an output of ``output_size``.

    Args:
        output_size: the number of elements.
        return_indices: only False is valid.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv1d(3, 8, 3), AdaptiveMaxPool1d(4))
    """

    def __init__(self, output_size: int, return_indices: bool = False) -> None:
        if return_indices:
            raise GraphError("AdaptiveMaxPool1d: return_indices=True; valid is False")
        self.output_size = _one("AdaptiveMaxPool1d", "output_size", output_size, 1)

    def _pooled(self, images: Any) -> Any:
        return adaptive_max(images, (1, self.output_size))

    def __repr__(self) -> str:
        return f"AdaptiveMaxPool1d(output_size={self.output_size})"


class _Norms(Layer):
    """The base of power-average pooling: the root of sums of powers over windows.

    The sums are averages of powers times the size of the window.
    """

    def _keep(self, norm_type: float, kernel: Any, stride: Any, ceil_mode: bool) -> None:
        """Checks the exponent, and keeps the window as an average pooling."""
        name, given = type(self).__name__, plain(norm_type)
        if type(given) not in (int, float) or not 0 < given < float("inf"):
            raise GraphError(f"{name}: norm_type={norm_type!r:.80}; valid is a number above 0")
        self.norm_type = float(given)
        self.op = ops.AvgPool2d(kernel, stride, (0, 0), ceil_mode, True)

    def _norms(self, x: Any) -> Any:
        """The norms of all windows; as in PyTorch, the root of a negative sum is NaN.  The gradient
        at 0 is 0."""
        power, count = self.norm_type, float(self.op.kernel_size[0] * self.op.kernel_size[1])
        a = argument(0)
        powers = apply(ops.Formula(a**power, title="Power"), x)
        total = apply(self.op, powers)
        root = a * count
        if power != 1.0:
            root = where(equal(a, 0.0), 0.0, root ** (1.0 / power))
        return apply(ops.Formula(root, title="Root"), total)

    def extra_repr(self) -> str:
        return f"norm_type={self.norm_type}, {self.op}"


class LPPool2d(_Norms):
    """``sum(x ** norm_type) ** (1 / norm_type)`` over windows of (N, C, H, W).

    Args:
        norm_type: the exponent, above 0.
        kernel_size: rows and columns of a window, or one number for both.
        stride: the step from one window to the next; None is ``kernel_size``.
        ceil_mode: only False is valid.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv2d(3, 8, 3), ReLU(), LPPool2d(2, 3, stride=2))
    """

    def __init__(
        self,
        norm_type: float,
        kernel_size: Size,
        stride: Size | None = None,
        ceil_mode: bool = False,
    ) -> None:
        _no_ceil("LPPool2d", ceil_mode)
        kernel = check_pair("LPPool2d", "kernel_size", kernel_size, 1)
        step = kernel if stride is None else check_pair("LPPool2d", "stride", stride, 1)
        self._keep(norm_type, kernel, step, ceil_mode)

    def forward(self, x: Any) -> Any:
        check_rank("LPPool2d", x, 4)
        return self._norms(x)


class LPPool1d(_Norms):
    """``sum(x ** norm_type) ** (1 / norm_type)`` over windows of (N, C, L).

    Args:
        norm_type: the exponent, above 0.
        kernel_size: elements of a window.
        stride: the step from one window to the next; None is ``kernel_size``.
        ceil_mode: only False is valid.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Conv1d(3, 8, 3), ReLU(), LPPool1d(2, 3))
    """

    def __init__(
        self,
        norm_type: float,
        kernel_size: int,
        stride: int | None = None,
        ceil_mode: bool = False,
    ) -> None:
        _no_ceil("LPPool1d", ceil_mode)
        kernel = _one("LPPool1d", "kernel_size", kernel_size, 1)
        step = kernel if stride is None else _one("LPPool1d", "stride", stride, 1)
        self._keep(norm_type, (1, kernel), (1, step), ceil_mode)

    def forward(self, x: Any) -> Any:
        check_rank("LPPool1d", x, 3)
        pooled = self._norms(apply(ops.View((*x.shape[:2], 1, x.shape[2])), x))
        return apply(ops.View((*pooled.shape[:2], pooled.shape[3])), pooled)


def _no_ceil(owner: str, ceil_mode: Any) -> None:
    """GraphError if ``ceil_mode`` is on."""
    if ceil_mode:
        raise GraphError(f"{owner}: ceil_mode={ceil_mode!r:.80}; valid is False")
