"""The sizes of convolutions and of matrix products, and their results by NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import UnsupportedError
from .step import Block


@dataclass(frozen=True)
class ConvolutionShape:
    """Images and filters; stride, padding and dilation are the same along both axes."""

    batch: int
    channels: int
    height: int
    width: int
    filters: int
    window_height: int = 3
    window_width: int = 3
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            if number < (least := 0 if name == "padding" else 1):
                raise UnsupportedError(f"{name}={number}; valid are {least} and more")
        if min(self.out_height, self.out_width) < 1:
            raise UnsupportedError(f"the window is larger than the padded image: {self}")

    @property
    def out_height(self) -> int:
        return self._positions(self.height, self.window_height)

    @property
    def out_width(self) -> int:
        return self._positions(self.width, self.window_width)

    def _positions(self, size: int, window: int) -> int:
        return (size + 2 * self.padding - (window - 1) * self.dilation - 1) // self.stride + 1

    @property
    def taps(self) -> int:
        """Numbers that one filter reads of one channel at one position."""
        return self.window_height * self.window_width

    @property
    def terms(self) -> int:
        """Products that are summed for an element of the result."""
        return self.channels * self.taps

    @property
    def operands(self) -> dict[str, int]:
        """The elements of all that a step may read or write."""
        return {
            "x": self.batch * self.channels * self.height * self.width,
            "w": self.filters * self.channels * self.taps,
            "bias": self.filters,
            "y": self.batch * self.filters * self.out_height * self.out_width,
        }

    @property
    def operations(self) -> int:
        """A multiply-add counted as two; products with padding are counted, too."""
        return 2 * self.operands["y"] * self.terms

    def tiles(self, block: Block) -> tuple[int, int]:
        """Blocks across and down that cover the plane of the result."""
        return -(-self.out_width // block[0]), -(-self.out_height // block[1])

    def halo(self, block: Block) -> tuple[int, int]:
        """What the outputs of a block need of a channel, across and down."""
        return (
            (block[0] - 1) * self.stride + (self.window_width - 1) * self.dilation + 1,
            (block[1] - 1) * self.stride + (self.window_height - 1) * self.dilation + 1,
        )


def convolve(shape: ConvolutionShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The result in float64; with a bias, it is added, and a ReLU follows."""
    images = (shape.batch, shape.channels, shape.height, shape.width)
    edge = (shape.padding, shape.padding)
    x = np.pad(operands["x"].reshape(images).astype(np.float64), [(0, 0), (0, 0), edge, edge])
    window = (shape.window_height, shape.window_width)
    w = operands["w"].reshape(shape.filters, shape.channels, *window).astype(np.float64)
    y = np.zeros((shape.batch, shape.filters, shape.out_height, shape.out_width))
    step, past = shape.stride, shape.stride * np.array([shape.out_height, shape.out_width])
    for i, j in np.ndindex(*window):
        top, left = i * shape.dilation, j * shape.dilation
        seen = x[:, :, top : top + past[0] : step, left : left + past[1] : step]
        y += (w[:, :, i, j] @ seen.reshape(*seen.shape[:2], -1)).reshape(y.shape)
    if "bias" in operands:
        y = np.maximum(y + operands["bias"].reshape(-1, 1, 1), 0.0)
    return y


@dataclass(frozen=True)
class ProductShape:
    """The result's rows and columns, and products summed for each of its elements."""

    rows: int = 4096
    columns: int = 4096
    depth: int = 4096

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            if number < 1:
                raise UnsupportedError(f"{name}={number}; valid are 1 and more")

    @property
    def operands(self) -> dict[str, int]:
        """The elements of both factors and of the result."""
        rows, columns, depth = self.rows, self.columns, self.depth
        return {"a": rows * depth, "b": depth * columns, "y": rows * columns}

    @property
    def terms(self) -> int:
        """Products that are summed for an element of the result."""
        return self.depth

    @property
    def operations(self) -> int:
        """A multiply-add counted as two."""
        return 2 * self.rows * self.columns * self.depth


def multiply(shape: ProductShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The result in float64."""
    a = operands["a"].reshape(shape.rows, shape.depth).astype(np.float64)
    return a @ operands["b"].reshape(shape.depth, shape.columns).astype(np.float64)
