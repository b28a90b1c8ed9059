"""Known datasets that cost no download: scikit-learn's digits, and Fashion-MNIST in a folder."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Sequence
from math import prod

import numpy as np

from minidnn.data.datasets import Arrays, DataError, Step
from minidnn.errors import UnsupportedError

__all__ = ["FASHION_CLASSES", "digits", "fashion_mnist", "read_idx"]

#: The last so many of scikit-learn's 1,797 digits are held out.
HELD_OUT = 360

FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

#: By the third byte of an IDX file; numbers are big-endian.
_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def digits(train: bool, augment: Sequence[Step] = ()) -> Arrays:
    """scikit-learn's handwritten digits, (N, 1, 8, 8) from 0 to 1.

    Args:
        train: the first 1,437 to train on, or else the last 360.
        augment: as of a :class:`Dataset`.

    Returns:
        The samples, with ten classes.

    Raises:
        UnsupportedError: scikit-learn is not installed.

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI.

    >>> held_out = md.data.digits(train=False)
    >>> print(len(held_out), held_out.x.shape)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UnsupportedError(
            "digits: scikit-learn is not installed (pip install 'minidnn[demo]')"
        ) from None
    data = load_digits()
    part = slice(None, -HELD_OUT) if train else slice(-HELD_OUT, None)
    x = (data.images[part, None] / 16).astype(np.float32)
    return Arrays(x, data.target[part], augment, classes=10)


def fashion_mnist(
    folder: str | os.PathLike[str], train: bool, augment: Sequence[Step] = ()
) -> Arrays:
    """Fashion-MNIST, (N, 1, 28, 28) from 0 to 1. MNIST's files have the same names and are read as
    well.

    Args:
        folder: where the files lie, compressed or not.
        train: the 60,000 to train on, or else the other 10,000.
        augment: as of a :class:`Dataset`.

    Returns:
        The samples, with the names of the ten classes.

    Raises:
        DataError: a file is missing or damaged.

    Source: Xiao, Rasul and Vollgraf, arXiv:1708.07747.

    >>> train = md.data.fashion_mnist("fashion", train=True)
    """
    kind = "train" if train else "t10k"
    x = read_idx(_find(folder, f"{kind}-images-idx3-ubyte"))
    y = read_idx(_find(folder, f"{kind}-labels-idx1-ubyte"))
    if x.ndim != 3 or y.ndim != 1 or y.dtype != np.uint8 or y.max(initial=0) > 9:
        raise DataError(
            f"folder {os.fspath(folder)} has pictures {x.shape} and labels {y.dtype} {y.shape}; "
            "valid are pictures (N, rows, columns) and labels (N,) from 0 to 9"
        )
    return Arrays(x[:, None], y, augment, FASHION_CLASSES)


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in an IDX file, the format of MNIST, which gzip may have compressed.

    Args:
        path: of the file.

    Returns:
        The numbers, with as many axes as the file says, in its dtype.

    Raises:
        DataError: the file cannot be read, is no such file, or has more or less than its header
            says.

    >>> labels = md.data.read_idx("fashion/train-labels-idx1-ubyte")
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as plain:
            zipped = plain.read(2) == b"\x1f\x8b"
        with gzip.open(name) if zipped else open(name, "rb") as file:
            zeros, code, rank = struct.unpack(">HBB", file.read(4))
            if zeros or code not in _DTYPES or not rank:
                raise DataError(f"file {name} is no IDX file: its first bytes say so")
            shape = struct.unpack(f">{rank}I", file.read(4 * rank))
            dtype = np.dtype(_DTYPES[code])
            size = prod(shape) * dtype.itemsize
            data = file.read(size)
            if len(data) < size or file.read(1):
                what = "less" if len(data) < size else "more"
                raise DataError(f"file {name} has {what} than the {size} bytes of {shape} {dtype}")
    except (OSError, EOFError, MemoryError, OverflowError, struct.error, zlib.error) as error:
        raise DataError(f"file {name} cannot be read: {error}") from None
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _find(folder: str | os.PathLike[str], name: str) -> str:
    tried = [os.path.join(folder, name + suffix) for suffix in ("", ".gz")]
    for path in tried:
        if os.path.exists(path):
            return path
    raise DataError(f"there is neither {tried[0]} nor {os.path.basename(tried[1])}")
