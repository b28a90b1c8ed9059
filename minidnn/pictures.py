"""Reads picture files as arrays, prepared as for torchvision's networks.

The steps, their order and their rounding are those of torchvision's ``ImageClassification`` on
what its ``ImageFolder`` reads: convert to RGB, resize so that the shorter side has ``resize``
pixels (by Pillow's bilinear or bicubic filter, which smooth when they shrink), cut out the centre,
divide by 255, subtract the mean, divide by the standard deviation.  As there, transparency is
dropped, of an animation the first frame is taken, and the orientation that a camera noted is not
applied.
Where torchvision's result would be white (16-bit grey), the high byte is taken instead.

Pillow is imported on first use.
"""

from __future__ import annotations

import io
import logging
import os
import re
import stat
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from minidnn.errors import UnsupportedError
from minidnn.preparation import IMAGENET_MEAN, IMAGENET_STD, PictureError, Preparation

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "PictureError",
    "Preparation",
    "cut_centre",
    "decode",
    "extensions",
    "normalized",
    "read_picture",
]

log = logging.getLogger(__name__)

#: The most pixels of a picture, in the file and resized: 680 MiB as Pillow stores them.  Pillow's
#: own limit is the same.
MOST_PIXELS = 178_956_970

#: Formats for which Pillow starts another program (Ghostscript).
_REFUSED_FORMATS = ("EPS",)


def read_picture(path: str | os.PathLike[str], preparation: Preparation) -> np.ndarray:
    """Reads one picture as an array (1, channels, crop, crop), float32.

    Raises:
        UnsupportedError: Pillow is not installed.
        PictureError: the file cannot be read as a picture, or is refused: it has too many pixels,
            its pixels have no known range, or reading it would start another program.
    """
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        pixels = decode(
            path,
            preparation.channels,
            lambda picture: cut_centre(picture, preparation),
            preparation.resize,
        )
    for note in notes:
        log.info("picture %s: %s", os.fspath(path), note.message)
    return normalized(pixels, preparation)


def decode(
    path: str | os.PathLike[str],
    channels: int,
    take: Callable[[Any], np.ndarray],
    resize: int | None = None,
    content: bytes | None = None,
    most: int = MOST_PIXELS,
) -> np.ndarray:
    """Decodes a picture, and returns what ``take`` makes of Pillow's image of it.

    The image is RGB, or grey for one channel, with 8 bits a channel.  ``resize`` is the size in
    pixels that its shorter side will be resized to, ``content`` the file's bytes if they were read
    already, ``most`` the largest number of pixels.  The errors are those of :func:`read_picture`.
    Pillow's warnings are not caught, since catching them is not thread-safe.
    """
    image = _pillow(f"picture {os.fspath(path)}")
    if content is None:
        _check_file(path)
    try:
        with image.open(path if content is None else io.BytesIO(content)) as file:
            _check(file, resize, most)
            return take(_eight_bits(image, file).convert("RGB" if channels == 3 else "L"))
    except PictureError as error:
        raise PictureError(f"picture {os.fspath(path)} {error}") from None
    except MemoryError:
        raise
    # Pillow's decoders raise whatever a damaged file leads them to.
    except Exception as error:
        text = re.sub(" <_io.BytesIO[^>]*>", "", _reason(error))
        raise PictureError(f"picture {os.fspath(path)} cannot be read: {text}") from error


def extensions() -> frozenset[str]:
    """The file name extensions (".png", lower case) of formats that can be read.

    UnsupportedError if Pillow is not installed.
    """
    image = _pillow("pictures")
    image.init()
    readable = set(image.OPEN) - set(_REFUSED_FORMATS)
    found = image.registered_extensions().items()
    return frozenset(extension for extension, format in found if format in readable)


def _pillow(what: str) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UnsupportedError(
            f"{what}: Pillow is not installed (pip install 'minidnn[images]')"
        ) from None
    return Image


def _check_file(path: str | os.PathLike[str]) -> None:
    """PictureError if there is no regular file."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise PictureError(
            f"picture {os.fspath(path)!s} cannot be read: {_reason(error)}"
        ) from None
    if not stat.S_ISREG(mode):
        raise PictureError(f"picture {os.fspath(path)} is not a regular file")


def _check(file: Any, resize: int | None, most: int) -> None:
    """PictureError for a format or a number of pixels that is refused, before decoding."""
    if file.format in _REFUSED_FORMATS:
        raise PictureError(
            f"is {file.format}, which would be handed to another program; valid are formats that "
            "Pillow reads by itself: convert it first"
        )
    width, height = file.size
    if min(width, height) < 1:
        raise PictureError(f"has {width}x{height} pixels")
    sizes = {"has": (width, height)}
    if resize is not None:
        sizes["resized would have"] = _resized_size(width, height, resize)
    for what, (across, down) in sizes.items():
        count = across * down
        if count > most:
            raise PictureError(
                f"of {width}x{height} pixels {what} {count:,} pixels; valid are at most {most:,}"
            )


def cut_centre(picture: Any, preparation: Preparation) -> np.ndarray:
    """Resizes a Pillow image and crops its centre: (crop, crop, channels), uint8."""
    from PIL import Image

    crop = preparation.crop
    width, height = picture.size
    size = _resized_size(width, height, preparation.resize)
    picture = picture.resize(size, Image.Resampling[preparation.interpolation.upper()])
    # round() rounds half to even, as torchvision does.
    left, top = (round((side - crop) / 2) for side in size)
    cropped = picture.crop((left, top, left + crop, top + crop))
    return np.asarray(cropped, np.uint8).reshape(crop, crop, preparation.channels)


def _resized_size(width: int, height: int, shorter: int) -> tuple[int, int]:
    least = min(width, height)
    return int(shorter * width / least), int(shorter * height / least)


def _eight_bits(image: Any, file: Any) -> Any:
    """Converts a picture to 8 bits a channel by its high byte; Pillow would clip values at 255.

    The high byte is also what Pillow keeps of pictures with 16 bits in several channels.
    """
    if file.mode == "F":
        raise PictureError(
            "has floating-point pixels, and no file says which value is white; valid are 8 and "
            "16 bits a channel: convert it first"
        )
    if file.mode != "I" and not file.mode.startswith("I;16"):
        return file
    values = np.asarray(file)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise PictureError(
            f"has 32-bit pixels from {values.min()} to {values.max()}; valid are 8 and 16 bits a "
            "channel: convert it first"
        )
    return image.fromarray((values >> 8).astype(np.uint8))


def normalized(pixels: np.ndarray, preparation: Preparation) -> np.ndarray:
    """Converts 8-bit pixels (rows, columns, channels) to a network's input: normalized, (1,
    channels, rows, columns), float32."""
    scaled = pixels.astype(np.float32) / np.float32(255)
    scaled -= np.array(preparation.mean, np.float32)
    scaled /= np.array(preparation.std, np.float32)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())[:300]
    return text or type(error).__name__
