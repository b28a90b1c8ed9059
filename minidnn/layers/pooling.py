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
    """Maximum over windows; ``stride`` is ``kernel_size`` unless given."""

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
    """Average over windows; ``stride`` is ``kernel_size`` unless given."""

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
    """Average over windows chosen for an output of ``output_size``; None keeps a size."""

    def __init__(self, output_size: int | tuple[int | None, int | None] | None) -> None:
        size = plain(output_size)
        pair: Any = size if isinstance(size, (tuple, list)) else (size,) * 2
        super().__init__(ops.AdaptiveAvgPool2d(tuple(pair)))
