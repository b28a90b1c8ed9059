"""Pictures that are turned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from minidnn.data.augment import sizes_of
from minidnn.data.datasets import DataError
from minidnn.data.draws import Draws
from minidnn.data.moves import BatchMove, Matrices
from minidnn.data.warp import inverse_matrix

__all__ = ["Rotation"]


@dataclass(frozen=True)
class Rotation:
    """Turns each picture about its middle, as torchvision's ``RandomRotation`` does.

    Args:
        degrees: from where to where, anticlockwise, or the most in either direction.
        interpolation: "nearest" or "bilinear".
        fill: what comes from outside, one number or one for each channel.

    Raises:
        DataError: an argument is not valid.

    >>> steps = [md.data.Rotation(15, "bilinear")]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    degrees: float | tuple[float, float]
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        given: Any = self.degrees
        pair = (-given, given) if isinstance(given, (int, float)) else given
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not pair[0] <= pair[1]:
            raise DataError(
                f"Rotation: degrees={given!r}; valid is a number of at least 0, or two in order"
            )
        if self.interpolation not in ("nearest", "bilinear"):
            raise DataError(
                f"Rotation: interpolation={self.interpolation!r}; valid are 'nearest' and "
                "'bilinear'"
            )

    def move(self, shape: tuple[int, ...], draws: Draws) -> BatchMove:
        """By what each picture of a batch is turned."""
        given: Any = self.degrees
        low, high = (-given, given) if isinstance(given, (int, float)) else given
        angles = draws.uniform(low=low, high=high)
        matrices = np.stack([inverse_matrix(-angle) for angle in angles.tolist()])
        return Matrices(matrices, self.interpolation == "bilinear", self.fill)

    def __call__(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        sizes_of(self, x)
        return self.move(x.shape, draws).pictures(x)
