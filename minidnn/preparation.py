"""The preprocessing of pictures for a network, and its metadata in files beside weights.

Every file format has text metadata: the header of a safetensors file, the properties of an ONNX
file, the header of a compiled network.  The text under :data:`KEY` is a preparation, as a JSON
object with all of its fields, so that other programs can read it, too.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from minidnn.errors import GraphError, MiniDNNError

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "KEY",
    "PictureError",
    "Preparation",
    "check_takes",
    "metadata_of",
    "preparation_in",
]

#: Torchvision's mean and standard deviation of red, green and blue, which go from 0 to 1.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

#: The key of a preparation in a file's metadata.
KEY = "minidnn.preparation"
_FIELDS = ("resize", "crop", "channels", "mean", "std", "classes", "interpolation")


class PictureError(MiniDNNError, ValueError):
    """A file cannot be read as a picture, or what is to be done to pictures makes no sense.

    >>> try:
    ...     md.Preparation(resize=32, crop=40)
    >>> except md.MiniDNNError as error:
    ...     print(error)
    """


@dataclass(frozen=True)
class Preparation:
    """What is done to a picture before a network sees it, and what the network's classes are.

    The shorter side is resized with one of Pillow's filters, the centre is cut out, and pixels are
    divided by 255, less the mean, divided by the deviation, as torchvision does it.

    Args:
        resize: pixels of the shorter side before the crop.
        crop: rows and columns of the centre that is cut out, at most ``resize``.
        channels: 3 (red, green, blue) or 1 (grey).
        mean, std: subtracted from and dividing the channels, which go from 0 to 1, a number for
            each; by default torchvision's for three channels, and 0 and 1 for grey.
        classes: the names of the network's classes, in the order of its outputs.
        interpolation: how the shorter side is resized, "bilinear" or "bicubic".

    Raises:
        PictureError: an argument is not valid.

    >>> net32 = md.Preparation(resize=36, crop=32, classes=("cat", "dog"))
    >>> md.save_weights(net.state_dict(), "weights.safetensors", preparation=net32)
    >>> print(md.load_preparation("weights.safetensors"))
    """

    resize: int
    crop: int
    channels: int = 3
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: tuple[str, ...] | None = None
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        for name in ("resize", "crop"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise PictureError(f"{name}={_brief(value)}; valid is an integer of at least 1")
        if self.crop > self.resize:
            raise PictureError(
                f"crop={self.crop} is larger than resize={self.resize}; valid is a crop of at "
                "most the shorter side that a picture is resized to"
            )
        if type(self.channels) is not int or self.channels not in (1, 3):
            raise PictureError(f"channels={_brief(self.channels)}; valid are 3 (RGB) and 1 (grey)")
        if self.interpolation not in ("bilinear", "bicubic"):
            raise PictureError(
                f"interpolation={_brief(self.interpolation)}; valid are 'bilinear' and 'bicubic'"
            )
        is_colour = self.channels == 3 and self.mean is None and self.std is None
        usual = {
            "mean": IMAGENET_MEAN if is_colour else (0.0,) * self.channels,
            "std": IMAGENET_STD if is_colour else (1.0,) * self.channels,
        }
        for name, default in usual.items():
            given = getattr(self, name)
            object.__setattr__(self, name, default if given is None else self._numbers(name, given))
        if self.classes is not None:
            object.__setattr__(self, "classes", _names(self.classes))

    def _numbers(self, name: str, given: Any) -> tuple[float, ...]:
        """One number for each channel, checked, as a tuple."""
        listed = tuple(given) if isinstance(given, (tuple, list)) else ()
        are_numbers = all(type(each) in (int, float) and math.isfinite(each) for each in listed)
        if len(listed) != self.channels or not are_numbers or (name == "std" and 0 in listed):
            other = " other than 0" if name == "std" else ""
            raise PictureError(
                f"{name}={_brief(given)}; valid are {self.channels} finite numbers{other}, one for "
                "each channel"
            )
        return tuple(map(float, listed))

    def __str__(self) -> str:
        margin = "" if self.resize == self.crop else f" of {self.resize}"
        told = [f"{self.crop}x{self.crop}{margin}", *(["grey"] if self.channels == 1 else [])]
        for name, numbers in (("mean", self.mean), ("deviation", self.std)):
            told.append(f"{name} {' '.join(f'{each:g}' for each in numbers or ())}")
        if self.interpolation != "bilinear":
            told.append(self.interpolation)
        if self.classes is not None:
            told.append(f"{len(self.classes)} classes")
        return ", ".join(told)

    def resized(self, crop: int) -> Self:
        """Returns the preparation for another crop, with a margin in proportion."""
        return replace(self, resize=max(crop, round(crop * self.resize / self.crop)), crop=crop)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parses the text that :func:`metadata_of` writes; PictureError if it is damaged."""
        try:
            fields = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        except RecursionError:
            raise PictureError("its JSON is nested too deep") from None
        except ValueError as error:
            raise PictureError(f"it is not valid JSON: {error}") from None
        if not isinstance(fields, dict) or sorted(fields) != sorted(_FIELDS):
            raise PictureError(
                f"it is {_brief(fields)}; valid is an object with {', '.join(_FIELDS)}"
            )
        for name in ("mean", "std"):
            if not isinstance(fields[name], list):
                raise PictureError(f"{name} is {_brief(fields[name])}; valid is a list of numbers")
        return cls(**fields)


def metadata_of(preparation: Preparation | None) -> dict[str, str]:
    """Returns a file's metadata for a preparation: empty for None.

    GraphError if it is neither.
    """
    if preparation is None:
        return {}
    if not isinstance(preparation, Preparation):
        raise GraphError(
            f"preparation={_brief(preparation)} is a {type(preparation).__name__}; valid is a "
            "minidnn.Preparation, or None"
        )
    return {KEY: json.dumps(asdict(preparation), separators=(",", ":"))}


def preparation_in(
    metadata: Mapping[str, str], fail: Callable[[str], Exception]
) -> Preparation | None:
    """Returns the preparation in a file's metadata; None if there is none.

    ``fail`` makes the exception for a damaged one from its description.
    """
    if KEY not in metadata:
        return None
    try:
        return Preparation.from_text(metadata[KEY])
    except PictureError as error:
        raise fail(f"its metadata {KEY!r} are damaged: {error}") from error


def check_takes(
    preparation: Preparation | None, network: str, shapes: Sequence[Sequence[Any]]
) -> None:
    """GraphError if a network with inputs of these shapes does not take the prepared pictures.

    A size that is not an int may be any size, and fits.
    """
    if preparation is None:
        return
    wanted = (preparation.channels, preparation.crop, preparation.crop)
    fits = len(shapes) == 1 and len(shapes[0]) == 4
    fits = fits and all(
        size == own for size, own in zip(shapes[0][1:], wanted, strict=True) if type(size) is int
    )
    if not fits:
        taken = ", ".join(f"({', '.join(map(str, shape))})" for shape in shapes)
        raise GraphError(
            f"preparation makes pictures of {wanted}, and network {network!r} takes "
            f"{taken}; valid is a preparation for its "
            "one input (N, channels, crop, crop)"
        )


def _names(given: Any) -> tuple[str, ...]:
    listed = tuple(given) if isinstance(given, (tuple, list)) else ()
    if not listed or not all(isinstance(each, str) and each for each in listed):
        raise PictureError(f"classes={_brief(given)}; valid are names, one for each class, or None")
    return listed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key appears twice")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _brief(value: object) -> str:
    return reprlib.repr(value)[:100]
