"""Augmentation policies: operations that are drawn for each picture, as in torchvision.

RandAugment and TrivialAugment choose among geometric and colour operations; RandomErasing
overwrites a box of some pictures.  Colours go from 0 to 1; Posterize and Equalize, which work on
bytes, round to uint8 first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import atan, degrees, exp, inf, log, sqrt
from typing import ClassVar, Literal

import numpy as np

from minidnn.data.augment import blend, grey, sizes_of
from minidnn.data.datasets import DataError, Draws, check_numbers, check_ranges
from minidnn.data.moves import BatchMove, Matrices, inverse_matrix

__all__ = ["RandAugment", "RandomErasing", "TrivialAugment"]


@dataclass(frozen=True)
class RandomErasing:
    """Overwrites a box of random area and shape, as torchvision chooses it.

    Args:
        p: the probability with which a picture is changed.
        scale: least and largest share of the picture's area.
        ratio: least and largest height over width.
        value: what is written: one number, one for each channel, or "random" for normal noise.

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
    #: Boxes that are tried before a picture is left as it is.
    TRIES: ClassVar[int] = 10

    def __post_init__(self) -> None:
        check_numbers(self, 0, 1, "p")
        check_ranges(self, ("scale", 0, 1), ("ratio", 0, inf))
        if isinstance(self.value, str) and self.value != "random":
            raise DataError(
                f"RandomErasing: value={self.value!r}; valid are a number, one for each channel, "
                "and 'random'"
            )

    def box(self, height: int, width: int, uniform: np.ndarray) -> tuple[int, int, int, int] | None:
        """Returns top, left, height and width of the box to overwrite; None if no try fits.

        ``uniform`` are random numbers, 4 for each try.
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
        is_changed = draws.uniform() < self.p
        numbers = draws.uniform(self.TRIES * 4)
        noise = draws.normal(channels, height, width) if self.value == "random" else None
        if noise is None:
            fill = np.array(self.value, np.float32).reshape(-1, 1, 1)
            if len(fill) not in (1, channels):
                raise DataError(f"{self}: pictures have {channels} channels; valid are as many")
        for i in np.flatnonzero(is_changed):
            box = self.box(height, width, numbers[i])
            if box is None:
                continue
            top, left, rows, columns = box
            region = np.s_[:, top : top + rows, left : left + columns]
            x[i][region] = fill if noise is None else noise[i][region]
        return x


#: The operations, in torchvision's order: the magnitude of each at full strength in RandAugment and
#: in TrivialAugment, and whether it has a random sign.  RandAugment's translations are shares of
#: the picture's width or height, TrivialAugment's are pixels.
_SPACE: dict[str, tuple[float, float, bool]] = {
    "Identity": (0.0, 0.0, False),
    "ShearX": (0.3, 0.99, True),
    "ShearY": (0.3, 0.99, True),
    "TranslateX": (150.0 / 331.0, 32.0, True),
    "TranslateY": (150.0 / 331.0, 32.0, True),
    "Rotate": (30.0, 135.0, True),
    "Brightness": (0.9, 0.99, True),
    "Color": (0.9, 0.99, True),
    "Contrast": (0.9, 0.99, True),
    "Sharpness": (0.9, 0.99, True),
    "Posterize": (4.0, 6.0, False),
    "Solarize": (255.0, 255.0, False),
    "AutoContrast": (0.0, 0.0, False),
    "Equalize": (0.0, 0.0, False),
}
_NAMES = tuple(_SPACE)


@dataclass(frozen=True)
class _Policy:
    """The base of policies: turns a drawn operation, strength and sign into a magnitude."""

    def _amount(self, name: str, part: float, sign: bool, sizes: tuple[int, int]) -> float:
        """The magnitude of an operation at a fraction ``part`` of full strength.

        ``sizes`` are the picture's rows and columns.  The unit is the operation's: pixels of a
        translation, degrees of a rotation, bits that Posterize keeps, ...
        """
        full = self._most(name, sizes)
        if name == "Posterize":
            return float(8 - int(np.rint(full * part)))
        if name == "Solarize":
            return full * (1.0 - part)
        return -full * part if sign and _SPACE[name][2] else full * part

    def _most(self, name: str, sizes: tuple[int, int]) -> float:
        """The magnitude of an operation at full strength."""
        raise NotImplementedError

    def _drawn(self, draws: Draws) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Draws the rounds of a batch.

        For each round, three arrays with one entry per picture: the operation's index, the
        fraction of full strength, and whether the sign is negative.
        """
        raise NotImplementedError

    def move(self, shape: tuple[int, ...], draws: Draws) -> BatchMove:
        """Draws the operations of a batch, which also move masks and boxes."""
        return _Drawn(self, self._drawn(draws))

    def __call__(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        channels = sizes_of(self, x)[1]
        if channels not in (1, 3):
            raise DataError(f"{self}: pictures have {channels} channels; valid are 1 and 3")
        return self.move(x.shape, draws).pictures(x)


class _Drawn(BatchMove):
    """The operations that a policy drew for a batch, round after round."""

    def __init__(
        self, policy: _Policy, drawn: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
    ) -> None:
        self._policy, self._rounds = policy, drawn

    def _each(self, round: int, sizes: tuple[int, int]) -> list[tuple[str, float]]:
        names, parts, signs = self._rounds[round]
        return [
            (_NAMES[name], self._policy._amount(_NAMES[name], float(part), bool(sign), sizes))
            for name, part, sign in zip(names, parts, signs, strict=True)
        ]

    def _matrices(self, each: list[tuple[str, float]], sizes: tuple[int, int]) -> Matrices:
        return Matrices(np.stack([_matrix(name, amount, sizes) for name, amount in each]))

    def pictures(self, x: np.ndarray) -> np.ndarray:
        sizes = (x.shape[2], x.shape[3])
        for round in range(len(self._rounds)):
            operations = self._each(round, sizes)
            moved = [i for i, (name, _) in enumerate(operations) if name in _PLACES]
            if moved:
                moved_operations = [operations[i] for i in moved]
                x[moved] = self._matrices(moved_operations, sizes).pictures(x[moved])
            for i, (name, amount) in enumerate(operations):
                if name in _COLOURS:
                    x[i] = _COLOURS[name](x[i], amount)
        return x

    def masks(self, masks: np.ndarray, fill: int) -> np.ndarray:
        sizes = (masks.shape[1], masks.shape[2])
        for round in range(len(self._rounds)):
            masks = self._matrices(self._each(round, sizes), sizes).masks(masks, fill)
        return masks

    def boxes(self, boxes: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        for round in range(len(self._rounds)):
            boxes = self._matrices(self._each(round, sizes), sizes).boxes(boxes, sizes)
        return boxes


@dataclass(frozen=True)
class RandAugment(_Policy):
    """Changes each picture by operations that are drawn for it, all of one strength.

    Args:
        num_ops: how many operations, one after another.
        magnitude: how strong, from 0 to ``num_magnitude_bins - 1``.
        num_magnitude_bins: how many strengths there are.

    Raises:
        DataError: an argument is not valid.

    Source: Cubuk et al., arXiv:1909.13719.

    >>> steps = [md.data.RandAugment()]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31

    def __post_init__(self) -> None:
        lowest = {"num_ops": 0, "magnitude": 0, "num_magnitude_bins": 2}
        for name, low in lowest.items():
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise DataError(f"RandAugment: {name}={value!r}; valid is an int of at least {low}")
        if self.magnitude >= self.num_magnitude_bins:
            raise DataError(
                f"RandAugment: magnitude={self.magnitude}; valid is less than "
                f"num_magnitude_bins={self.num_magnitude_bins}"
            )

    def _most(self, name: str, sizes: tuple[int, int]) -> float:
        full = _SPACE[name][0]
        sides = {"TranslateX": sizes[1], "TranslateY": sizes[0]}
        return full * sides.get(name, 1)

    def _drawn(self, draws: Draws) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        part = np.full(len(draws), self.magnitude / (self.num_magnitude_bins - 1))
        return [(draws.integers(len(_NAMES)), part, draws.integers(2)) for _ in range(self.num_ops)]


@dataclass(frozen=True)
class TrivialAugment(_Policy):
    """Changes each picture by one operation of any strength, both drawn for it: torchvision's
    ``TrivialAugmentWide``.

    Args:
        num_magnitude_bins: how many strengths there are.

    Raises:
        DataError: the argument is not valid.

    Source: Müller and Hutter, arXiv:2103.10158.

    >>> steps = [md.data.TrivialAugment()]
    >>> train = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8), steps)
    """

    num_magnitude_bins: int = 31

    def __post_init__(self) -> None:
        value = self.num_magnitude_bins
        if type(value) is not int or value < 2:
            raise DataError(
                f"TrivialAugment: num_magnitude_bins={value!r}; valid is an int of at least 2"
            )

    def _most(self, name: str, sizes: tuple[int, int]) -> float:
        return _SPACE[name][1]

    def _drawn(self, draws: Draws) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        names = draws.integers(len(_NAMES))
        parts = draws.integers(self.num_magnitude_bins) / (self.num_magnitude_bins - 1)
        return [(names, parts, draws.integers(2))]


_PLACES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def _matrix(name: str, amount: float, sizes: tuple[int, int]) -> np.ndarray:
    """The matrix (2, 3) from output to input coordinates of an operation, the identity for colours.

    Shears are about the picture's top left corner, as in torchvision.
    """
    corner = (-sizes[1] / 2, -sizes[0] / 2)
    if name == "ShearX":
        return inverse_matrix(shear=(degrees(atan(amount)), 0.0), center=corner)
    if name == "ShearY":
        return inverse_matrix(shear=(0.0, degrees(atan(amount))), center=corner)
    if name == "TranslateX":
        return inverse_matrix(translate=(int(amount), 0))
    if name == "TranslateY":
        return inverse_matrix(translate=(0, int(amount)))
    return inverse_matrix(angle=-amount if name == "Rotate" else 0.0)


def _bytes(x: np.ndarray) -> np.ndarray:
    """Colours from 0 to 1 as uint8."""
    return np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)


def _sharpness(x: np.ndarray, amount: float) -> np.ndarray:
    height, width = x.shape[1:]
    if height <= 2 or width <= 2:
        return x
    kernel = np.ones((3, 3), np.float32)
    kernel[1, 1] = 5.0
    kernel /= kernel.sum()
    blurred = x.copy()
    inner = np.zeros_like(x[:, 1:-1, 1:-1])
    for i in range(3):
        for j in range(3):
            inner += kernel[i, j] * x[:, i : i + height - 2, j : j + width - 2]
    blurred[:, 1:-1, 1:-1] = inner
    return blend(x, blurred, np.float32(1.0 + amount))


def _contrast(x: np.ndarray, amount: float) -> np.ndarray:
    return blend(x, grey(x[None]).mean(dtype=np.float32), np.float32(1.0 + amount))


def _auto_contrast(x: np.ndarray, amount: float) -> np.ndarray:
    low, high = x.min((1, 2), keepdims=True), x.max((1, 2), keepdims=True)
    has_range = high > low
    scale = np.where(has_range, 1 / np.where(has_range, high - low, 1), 1)
    return np.clip((x - np.where(has_range, low, 0)) * scale, 0, 1)


def _equalize(x: np.ndarray, amount: float) -> np.ndarray:
    out = np.empty_like(x)
    for channel, pixels in enumerate(_bytes(x)):
        counts = np.bincount(pixels.reshape(-1), minlength=256)
        step = int(counts[counts > 0][:-1].sum()) // 255
        if step:
            table = (np.cumsum(counts) + step // 2) // step
            pixels = np.clip(np.concatenate([[0], table[:-1]]), 0, 255)[pixels]
        out[channel] = pixels / np.float32(255)
    return out


def _posterize(x: np.ndarray, bits: float) -> np.ndarray:
    return (_bytes(x) & (256 - (1 << (8 - int(bits))))) / np.float32(255)


def _solarize(x: np.ndarray, amount: float) -> np.ndarray:
    return np.where(x >= np.float32(amount / 255), 1 - x, x)


_COLOURS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "Brightness": lambda x, amount: np.clip(x * np.float32(1.0 + amount), 0, 1),
    "Color": lambda x, amount: blend(x, grey(x[None])[0], np.float32(1.0 + amount)),
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
}
