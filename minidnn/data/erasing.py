"""Boxes of pictures that are overwritten."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import ClassVar, Literal

import numpy as np

from minidnn.data.augment import sizes_of
from minidnn.data.datasets import DataError
from minidnn.data.draws import Draws

__all__ = ["RandomErasing"]


@dataclass(frozen=True)
class RandomErasing:
    """Overwrites a box of random area and shape, as torchvision chooses it.

    Args:
        p: the probability with which a picture is changed.
        scale: least and largest share of the picture's area.
        ratio: least and largest height over width.
        value: what is written, one number or one for each channel, or "random" for normal numbers.

    Raises:
        DataError: an argument is not valid.

    Source: Zhong et al., arXiv:1708.04896.

    >>> steps = [md.data.RandomErasing()]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, ...] | Literal["random"] = 0.0

    #: Masks and boxes stay as they are.
    places: ClassVar[bool] = False
    #: Boxes that are tried.
    TRIES: ClassVar[int] = 10

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise DataError(f"RandomErasing: p={self.p!r}; valid is a number from 0 to 1")
        if not 0 <= self.scale[0] <= self.scale[1] <= 1 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise DataError(
                f"RandomErasing: scale={self.scale!r}, ratio={self.ratio!r}; valid are pairs in "
                "order, of shares from 0 to 1 and of numbers above 0"
            )
        if isinstance(self.value, str) and self.value != "random":
            raise DataError(
                f"RandomErasing: value={self.value!r}; valid are a number, one for each channel, "
                "and 'random'"
            )

    def box(self, height: int, width: int, uniform: np.ndarray) -> tuple[int, int, int, int] | None:
        """Top, left, height and width of what is overwritten; None if no box that was tried fits.

        ``uniform`` are 4 numbers for each try.
        """
        low, high = log(self.ratio[0]), log(self.ratio[1])
        for area, shape, down, across in uniform.reshape(-1, 4).tolist():
            area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * area)
            ratio = exp(low + (high - low) * shape)
            rows, columns = round(sqrt(area * ratio)), round(sqrt(area / ratio))
            if rows < height and columns < width:
                top, left = int(down * (height - rows + 1)), int(across * (width - columns + 1))
                return top, left, rows, columns
        return None

    def __call__(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        _, channels, height, width = sizes_of(self, x)
        changed = draws.uniform() < self.p
        numbers = draws.uniform(self.TRIES * 4)
        noise = draws.normal(channels, height, width) if self.value == "random" else None
        if noise is None:
            given = np.array(self.value, np.float32).reshape(-1, 1, 1)
            if len(given) not in (1, channels):
                raise DataError(f"{self}: pictures have {channels} channels; valid are as many")
        for i in np.flatnonzero(changed):
            box = self.box(height, width, numbers[i])
            if box is None:
                continue
            top, left, rows, columns = box
            place = np.s_[:, top : top + rows, left : left + columns]
            x[i][place] = given if noise is None else noise[i][place]
        return x
