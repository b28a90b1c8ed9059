"""The sizes of a matrix product, and its result by NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...errors import UnsupportedError


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
