"""Pooling layers, with PyTorch's arguments."""

from __future__ import annotations

from typing import Any

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.operator import check_pair
from minidnn.graph.plain import plain
from minidnn.layers.activations import OperatorLayer

__all__ = ["AdaptiveAvgPool2d", "AvgPool2d", "MaxPool2d"]

Size = int | tuple[int, int]


class MaxPool2d(OperatorLayer):
    """Maximum over windows of (N, C, H, W). Padding never wins.

    Args:
        kernel_size: rows and columns of a window, or one number for both.
        stride: from one window to the next; None is ``kernel_size``.
        padding: rows and columns added on either side, at most half a window.
        dilation: from one element of a window to the next.
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
        stride: from one window to the next; None is ``kernel_size``.
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
