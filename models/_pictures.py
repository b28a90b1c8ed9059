"""Pictures from files as torchvision's networks want them."""

from __future__ import annotations

import os

import numpy as np

from minidnn.errors import GraphError, UnsupportedError

#: By which torchvision normalizes pictures, for red, green and blue from 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def read_picture(path: str | os.PathLike[str], resize: int, crop: int) -> np.ndarray:
    """One picture, as torchvision's ``ImageClassification`` prepares it.

    Args:
        path: of a file in any format that Pillow reads.
        resize: pixels of the shorter side before the crop.
        crop: rows and columns of the cropped centre, at most ``resize``.

    Returns:
        (1, 3, crop, crop), float32: red, green and blue, normalized.

    Raises:
        UnsupportedError: Pillow is not installed.
        GraphError: the file cannot be read as a picture.
    """
    try:
        from PIL import Image
    except ImportError:
        raise UnsupportedError(
            f"picture {os.fspath(path)}: Pillow is not installed (pip install 'minidnn[images]')"
        ) from None
    try:
        with Image.open(path) as file:
            picture = file.convert("RGB")
    except (OSError, Image.DecompressionBombError) as error:
        raise GraphError(f"picture {os.fspath(path)} cannot be read: {error}") from error
    shorter = min(picture.size)
    width, height = (int(resize * side / shorter) for side in picture.size)
    picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - crop) / 2), round((height - crop) / 2)
    pixels = np.asarray(picture.crop((left, top, left + crop, top + crop)), np.float32) / 255
    normalized = (pixels - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return np.ascontiguousarray(normalized.transpose(2, 0, 1)[None])
