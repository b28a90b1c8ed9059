"""Augmentation steps: what is done to a batch before a network sees it.

A step is a function of a batch (float32, (N, C, H, W), which it may write to) and the batch's
:class:`~minidnn.data.datasets.Draws`, and returns a batch.  A user's own function is a step like
those here.  Colours go from 0 to 1 until they are normalized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import ceil, exp, inf, log, sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from minidnn.data.datasets import DataError, Draws, check_numbers, check_ranges
from minidnn.data.moves import BatchMove, Cropped, Flipped, Matrices, Resized, inverse_matrix
from minidnn.pictures import IMAGENET_MEAN, IMAGENET_STD

__all__ = [
    "Affine",
    "ColorJitter",
    "Cutout",
    "Flip",
    "Normalize",
    "RandomCrop",
    "ResizedCrop",
    "Rotation",
    "VerticalFlip",
]


@dataclass(frozen=True)
class Normalize:
    """Subtracts a mean from each channel and divides by a deviation.

    Args:
        mean, std: a number for each channel; by default ImageNet's.

    Raises:
        DataError: a deviation is not above 0.

    >>> steps = [md.data.Normalize()]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    #: Masks and boxes stay as they are.
    places: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not all(each > 0 for each in self.std):
            raise DataError(f"Normalize: std={self.std!r:.80}; valid are numbers above 0")

    def __call__(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        channels = sizes_of(self, x)[1]
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != channels:
                raise DataError(
                    f"Normalize: {name} has {len(values)} numbers for {channels} channels"
                )
        x -= np.array(self.mean, np.float32)[:, None, None]
        x /= np.array(self.std, np.float32)[:, None, None]
        return x


class Mover:
    """The base of steps that move pixels."""

    def move(self, shape: tuple[int, ...], draws: Draws) -> BatchMove:
        """Draws what is done to a batch of this shape."""
        raise NotImplementedError

    def __call__(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        sizes_of(self, x)
        return self.move(x.shape, draws).pictures(x)


@dataclass(frozen=True)
class Flip(Mover):
    """Exchanges left and right.

    Args:
        probability: with which it does so.

    Raises:
        DataError: an argument is not valid.

    >>> steps = [md.data.Flip()]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_numbers(self, 0, 1, "probability")

    def move(self, shape: tuple[int, ...], draws: Draws) -> BatchMove:
        """Draws which pictures of a batch are flipped."""
        return Flipped(draws.uniform() < self.probability)


@dataclass(frozen=True)
class VerticalFlip(Flip):
    """Exchanges top and bottom.

    Args:
        probability: with which it does so.

    >>> steps = [md.data.VerticalFlip()]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    def move(self, shape: tuple[int, ...], draws: Draws) -> BatchMove:
        return Flipped(draws.uniform() < self.probability, vertical=True)


@dataclass(frozen=True)
class RandomCrop(Mover):
    """Cuts out a square anywhere.

    Args:
        size: its rows and columns.
        padding: rows and columns of zeros that are added on every side first.

    Raises:
        DataError: an argument is not valid.

    >>> steps = [md.data.RandomCrop(32, 4)]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    size: int
    padding: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, 1, inf, "size")
        check_numbers(self, 0, inf, "padding")

    def move(self, shape: tuple[int, ...], draws: Draws) -> BatchMove:
        """Draws where squares are cut out of a batch of this shape."""
        height, width = shape[-2:]
        rows = height + 2 * self.padding - self.size
        columns = width + 2 * self.padding - self.size
        if min(rows, columns) < 0:
            raise DataError(f"{self}: pictures have {height}x{width} pixels, which is too few")
        return Cropped(
            draws.integers(rows + 1), draws.integers(columns + 1), self.size, self.padding
        )


@dataclass(frozen=True)
class Affine(Mover):
    """Turns, shifts, scales and shears each picture by random amounts about its middle; what comes
    from outside is 0.

    Args:
        degrees: the largest angle that it is turned by in either direction.
        shift: the largest translation, as a share of its width and of its height.
        scale: the largest share that width and height, independently, grow or shrink by.
        shear: the most columns that a row moves by, for each row from the middle.

    Raises:
        DataError: an argument is not valid.

    >>> steps = [md.data.Affine(degrees=15)]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    degrees: float = 0.0
    shift: float = 0.0
    scale: float = 0.0
    shear: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self, 0, 1, "scale")

    def move(self, shape: tuple[int, ...], draws: Draws) -> BatchMove:
        """Draws the amounts of a batch: a rotation, a shear, two scales and two shifts each."""
        return _Affine(self, draws.uniform(6, 1, 1, low=-1.0).swapaxes(0, 1))

    def matrices(self, amounts: np.ndarray, height: int, width: int) -> np.ndarray:
        """Returns the affine map (N, 2, 3) of each picture, as :mod:`minidnn.data.moves` has it.

        ``amounts`` (6, N, 1, 1) are drawn from -1 to 1.
        """
        a = amounts[:, :, 0, 0]
        angle, shear = np.radians(self.degrees) * a[0], self.shear * a[1]
        across, down = 1 + self.scale * a[2], 1 + self.scale * a[3]
        cos, sin = np.cos(angle), np.sin(angle)
        columns = [cos * across, (shear * cos - sin) * down, self.shift * width * a[5]]
        rows = [sin * across, (shear * sin + cos) * down, self.shift * height * a[4]]
        return np.array([columns, rows]).transpose(2, 0, 1)

    def sampled(self, x: np.ndarray, amounts: np.ndarray) -> np.ndarray:
        """Returns pictures, each warped by its amounts with bilinear interpolation."""
        n, channels, height, width = sizes_of(self, x)
        angle, shear = np.radians(self.degrees) * amounts[0], self.shear * amounts[1]
        across, down = 1 + self.scale * amounts[2], 1 + self.scale * amounts[3]
        middle, center = (height - 1) / 2, (width - 1) / 2
        v, u = np.arange(height)[:, None] - middle, np.arange(width) - center
        cos, sin = np.cos(angle), np.sin(angle)
        # Where each pixel comes from, (N, H, W): between two rows and two columns.
        rows = middle + sin * across * u + (shear * sin + cos) * down * v
        columns = center + cos * across * u + (shear * cos - sin) * down * v
        rows = rows + self.shift * height * amounts[4]
        columns = columns + self.shift * width * amounts[5]
        tops, lefts = np.floor(rows), np.floor(columns)
        samples, channel_index = np.ogrid[:n, :channels]
        out = np.zeros_like(x)
        for row, column in product((tops, tops + 1), (lefts, lefts + 1)):
            share = (1 - abs(rows - row)) * (1 - abs(columns - column))
            share *= (row >= 0) & (row < height) & (column >= 0) & (column < width)
            r = np.clip(row, 0, height - 1).astype(np.int64)[:, None]
            c = np.clip(column, 0, width - 1).astype(np.int64)[:, None]
            out += (
                share[:, None].astype(np.float32)
                * x[samples[..., None, None], channel_index[..., None, None], r, c]
            )
        return out


@dataclass(frozen=True)
class _Affine(BatchMove):
    """The amounts (6, N, 1, 1) from -1 to 1 that an :class:`Affine` drew for a batch."""

    step: Affine
    amounts: np.ndarray

    def _matrices(self, height: int, width: int) -> Matrices:
        return Matrices(self.step.matrices(self.amounts, height, width))

    def pictures(self, x: np.ndarray) -> np.ndarray:
        return self.step.sampled(x, self.amounts)

    def masks(self, masks: np.ndarray, fill: int) -> np.ndarray:
        return self._matrices(*masks.shape[1:]).masks(masks, fill)

    def boxes(self, boxes: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        return self._matrices(*sizes).boxes(boxes, sizes)


@dataclass(frozen=True)
class ResizedCrop(Mover):
    """Cuts out a box of random area and shape, and resizes it to ``size`` rows and columns.

    As the first step of a :class:`~minidnn.data.files.Folder` it is applied to the whole picture,
    as decoded, by Pillow.

    Args:
        size: rows and columns of the result.
        scale: least and largest share of the picture's area.
        ratio: least and largest width over height.

    Raises:
        DataError: an argument is not valid.

    >>> steps = [md.data.ResizedCrop(24)]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    #: Boxes that are tried, and how many uniform numbers :meth:`box` takes.
    TRIES = 10
    NUMBERS = 2 * TRIES + 2

    def __post_init__(self) -> None:
        check_numbers(self, 1, inf, "size")
        check_ranges(self, ("scale", 0, inf), ("ratio", 0, inf))

    def box(self, height: int, width: int, uniform: np.ndarray) -> tuple[int, int, int, int]:
        """Returns top, left, height and width of the box to cut out, chosen as by torchvision.

        ``uniform`` are :attr:`NUMBERS` random numbers from 0 to 1.
        """
        low, high = log(self.ratio[0]), log(self.ratio[1])
        *tries, (down, across) = uniform.reshape(-1, 2).tolist()
        for u, v in tries:
            area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * u)
            ratio = exp(low + (high - low) * v)
            columns, rows = round(sqrt(area * ratio)), round(sqrt(area / ratio))
            if 0 < columns <= width and 0 < rows <= height:
                top, left = int(down * (height - rows + 1)), int(across * (width - columns + 1))
                return top, left, rows, columns
        # No box fits: take the widest or highest one in the middle.
        rows = min(height, round(width / self.ratio[0]))
        columns = min(width, round(height * self.ratio[1]))
        return (height - rows) // 2, (width - columns) // 2, rows, columns

    def move(self, shape: tuple[int, ...], draws: Draws) -> BatchMove:
        """Draws the boxes of a batch of this shape."""
        cuts = [self.box(shape[-2], shape[-1], numbers) for numbers in draws.uniform(self.NUMBERS)]
        return Resized(np.array(cuts), self.size, self._resized)

    def _resized(self, cut: np.ndarray) -> np.ndarray:
        return _resized(_resized(cut, self.size).swapaxes(1, 2), self.size).swapaxes(1, 2)


@dataclass(frozen=True)
class ColorJitter:
    """Changes brightness, contrast, saturation and hue at random, in this order.

    Args:
        brightness, contrast, saturation: each is multiplied by ``1 - amount`` to ``1 + amount``.
        hue: the largest share of the circle by which hue turns in either direction, at most 0.5.

    Raises:
        DataError: an argument is not valid.

    >>> steps = [md.data.ColorJitter(hue=0.1)]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    #: Masks and boxes stay as they are.
    places: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_numbers(self, 0, inf, "brightness", "contrast", "saturation")
        check_numbers(self, 0, 0.5, "hue")

    def factors(self, draws: Draws) -> np.ndarray:
        """Draws each sample's factors of brightness, contrast and saturation, and its hue shift.

        An array (samples, 4), float32.
        """
        amounts = np.array([self.brightness, self.contrast, self.saturation, self.hue])
        centers = np.array([1, 1, 1, 0])
        low = np.maximum(centers - amounts, [0, 0, 0, -0.5])
        return (low + (centers + amounts - low) * draws.uniform(4)).astype(np.float32)

    def __call__(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        channels = sizes_of(self, x)[1]
        if channels not in (1, 3) or (channels == 1 and (self.saturation or self.hue)):
            raise DataError(
                f"{self}: pictures have {channels} channels; valid are 3, or 1 for grey"
            )
        brightness, contrast, saturation, hue = self.factors(draws).T[..., None, None, None]
        if self.brightness:
            x = np.clip(x * brightness, 0, 1)
        if self.contrast:
            x = blend(x, grey(x).mean(axis=(1, 2, 3), keepdims=True), contrast)
        if self.saturation:
            x = blend(x, grey(x), saturation)
        return _with_hue(x, hue[:, 0]) if self.hue else x


@dataclass(frozen=True)
class Cutout:
    """Overwrites a square of each picture, whose centre may be any pixel.

    Args:
        size: rows and columns of the square.
        fill: the value that is written, one number or one for each channel.
        probability: with which a picture is changed.

    Raises:
        DataError: an argument is not valid.

    Source: DeVries and Taylor, arXiv:1708.04552.

    >>> steps = [md.data.Cutout(8)]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    size: int
    fill: float | tuple[float, ...] = 0.0
    probability: float = 1.0

    #: Masks and boxes stay as they are.
    places: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_numbers(self, 0, inf, "size")
        check_numbers(self, 0, 1, "probability")

    def __call__(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        _, _, height, width = sizes_of(self, x)
        inside = draws.uniform(1, 1, 1) < self.probability
        for axis, length in ((2, height), (3, width)):
            first = draws.integers(length, 1, 1, 1) - self.size // 2
            positions = np.arange(length).reshape([-1 if i == axis else 1 for i in range(4)])
            inside = inside & (positions >= first) & (positions < first + self.size)
        return np.where(inside, np.array(self.fill, np.float32).reshape(-1, 1, 1), x)


def sizes_of(step: Callable[..., np.ndarray], x: np.ndarray) -> tuple[int, ...]:
    """Returns the shape (N, C, H, W) of a batch; DataError, which names the step, for others."""
    if x.ndim != 4:
        raise DataError(f"{step}: samples have shape {x.shape[1:]}; valid is (C, H, W)")
    return x.shape


def _resized(x: np.ndarray, size: int) -> np.ndarray:
    """Resamples (C, H, W) to ``size`` rows with a linear filter, antialiased when it shrinks.

    It adds tap by tap and so gives the same bits everywhere, unlike a matrix product.
    """
    length = x.shape[1]
    scale = length / size
    support = max(scale, 1.0)
    centers = (np.arange(size) + 0.5) * scale
    first = np.maximum(0, centers - support + 0.5).astype(np.int64)
    taps = first[:, None] + np.arange(2 * ceil(support) + 1)
    weights = np.maximum(0, 1 - np.abs(taps + 0.5 - centers[:, None]) / support)
    weights *= taps < length
    weights = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    taps = np.minimum(taps, length - 1)
    out = np.zeros((x.shape[0], size, x.shape[2]), np.float32)
    for tap, weight in zip(taps.T, weights.T, strict=True):
        out += x[:, tap] * weight[:, None]
    return out


def grey(x: np.ndarray) -> np.ndarray:
    """Returns the luma of (N, C, H, W), with one channel."""
    if x.shape[1] == 1:
        return x
    red, green, blue = (x[:, i : i + 1] for i in range(3))
    return np.float32(0.2989) * red + np.float32(0.587) * green + np.float32(0.114) * blue


def blend(x: np.ndarray, other: Any, share: Any) -> np.ndarray:
    """Returns ``share * x + (1 - share) * other``, clipped to 0..1; the share may be above 1."""
    mixture: np.ndarray = np.clip(share * x + (1 - share) * other, 0, 1)
    return mixture


def _with_hue(x: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Returns (N, 3, H, W) with the hue shifted by ``turn`` of the circle.

    Value and saturation stay.
    """
    red, green, blue = x[:, 0], x[:, 1], x[:, 2]
    value, chroma = x.max(axis=1), np.ptp(x, axis=1)
    divisor = np.where(chroma == 0, np.float32(1), chroma)
    hue = np.where(
        value == red,
        (green - blue) / divisor,
        np.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    hue += 6 * turn
    out = np.empty_like(x)
    for channel, shift in enumerate((5, 3, 1)):
        sextant = (hue + shift) % 6
        out[:, channel] = value - chroma * np.clip(np.minimum(sextant, 4 - sextant), 0, 1)
    return out


@dataclass(frozen=True)
class Rotation(Mover):
    """Turns each picture about its middle, as torchvision's ``RandomRotation`` does.

    Args:
        degrees: the least and the largest angle, anticlockwise, or the largest in either direction.
        interpolation: "nearest" or "bilinear".
        fill: the value of pixels from outside, one number or one for each channel.

    Raises:
        DataError: an argument is not valid.

    >>> steps = [md.data.Rotation(15, "bilinear")]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    degrees: float | tuple[float, float]
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        degrees: Any = self.degrees
        pair = (-degrees, degrees) if isinstance(degrees, (int, float)) else degrees
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not pair[0] <= pair[1]:
            raise DataError(
                f"Rotation: degrees={degrees!r}; valid is a number of at least 0, or two in order"
            )
        if self.interpolation not in ("nearest", "bilinear"):
            raise DataError(
                f"Rotation: interpolation={self.interpolation!r}; valid are 'nearest' and "
                "'bilinear'"
            )

    def move(self, shape: tuple[int, ...], draws: Draws) -> BatchMove:
        """Draws the angle of each picture of a batch."""
        degrees: Any = self.degrees
        low, high = (-degrees, degrees) if isinstance(degrees, (int, float)) else degrees
        angles = draws.uniform(low=low, high=high)
        matrices = np.stack([inverse_matrix(-angle) for angle in angles.tolist()])
        return Matrices(matrices, self.interpolation == "bilinear", self.fill)
