"""Datasets from files: a folder of pictures for each class, and well-known datasets.

Nothing is downloaded: digits come with scikit-learn, and Fashion-MNIST, CIFAR-10 and CIFAR-100 are
read from a folder, CIFAR in its Python (pickle) or its binary version.
"""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any, Literal

import numpy as np

from minidnn.data.augment import ResizedCrop
from minidnn.data.datasets import Arrays, DataError, Dataset, Draws, Step, as_numbers, one_by_one
from minidnn.errors import MiniDNNWarning, UnsupportedError
from minidnn.pictures import PictureError, Preparation, cut_centre, decode, extensions

__all__ = [
    "CIFAR10_CLASSES",
    "FASHION_CLASSES",
    "Folder",
    "cifar10",
    "cifar100",
    "digits",
    "fashion_mnist",
    "read_idx",
]


#: How many of scikit-learn's 1,797 digits, the last ones, are held out for testing.
HELD_OUT = 360

FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

#: NumPy's dtypes by the third byte of an IDX file; numbers are big-endian.
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
        folder: the folder of the files, compressed or not.
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


CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

#: Bytes of a picture of CIFAR: red, green and blue, 32 rows of 32 each.
_PIXELS = 3 * 32 * 32


def cifar10(folder: str | os.PathLike[str], train: bool, augment: Sequence[Step] = ()) -> Arrays:
    """CIFAR-10, (N, 3, 32, 32) from 0 to 1.

    Args:
        folder: the folder with ``cifar-10-batches-py`` or ``cifar-10-batches-bin``, as the
            archives have them, or one of these itself.
        train: the 50,000 to train on, or else the other 10,000.
        augment: as of a :class:`Dataset`.

    Returns:
        The samples, with the names of the ten classes.

    Raises:
        DataError: a file is missing or damaged.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.

    >>> train = md.data.cifar10("cifar", train=True)
    """
    names = [f"data_batch_{i}" for i in range(1, 6)] if train else ["test_batch"]
    base, binary = _base(folder, "cifar-10-batches", names[0])
    parts = [_read(os.path.join(base, name), binary, (b"labels",), 10) for name in names]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Arrays(x, y, augment, CIFAR10_CLASSES)


def cifar100(
    folder: str | os.PathLike[str],
    train: bool,
    augment: Sequence[Step] = (),
    *,
    coarse: bool = False,
) -> Arrays:
    """CIFAR-100, (N, 3, 32, 32) from 0 to 1.

    Args:
        folder: the folder with ``cifar-100-python`` or ``cifar-100-binary``, as the archives have
            them, or one of these itself.
        train: the 50,000 to train on, or else the other 10,000.
        augment: as of a :class:`Dataset`.
        coarse: whether targets are the 20 groups of classes, and not the 100 classes.

    Returns:
        The samples, with the names of the classes if the folder has them.

    Raises:
        DataError: a file is missing or damaged.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.

    >>> train = md.data.cifar100("cifar", train=True)
    """
    name, kind = "train" if train else "test", "coarse" if coarse else "fine"
    base, binary = _base(folder, "cifar-100", name)
    # A record of the binary version begins with the coarse label, then the fine one.
    keys = (b"coarse_labels", b"fine_labels")
    x, y = _read(os.path.join(base, name), binary, keys, 20 if coarse else 100, int(not coarse))
    return Arrays(x, y, augment, _names(base, binary, kind, 20 if coarse else 100))


def _base(folder: str | os.PathLike[str], name: str, first: str) -> tuple[str, bool]:
    """Returns the folder that has file ``first``, and whether it is the binary version."""
    root = os.fspath(folder)
    kinds = {"cifar-10-batches": ("-py", "-bin"), "cifar-100": ("-python", "-binary")}[name]
    tried = []
    for base in (root, *(os.path.join(root, name + kind) for kind in kinds)):
        for suffix in ("", ".bin"):
            tried.append(os.path.join(base, first + suffix))
            if os.path.isfile(tried[-1]):
                return base, bool(suffix)
    raise DataError(
        f"there is none of {', '.join(tried)}; valid is a folder into which an archive of "
        f"{name.replace('-batches', '')} was extracted"
    )


def _read(
    path: str, binary: bool, keys: tuple[bytes, ...], classes: int, label: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Reads a file of CIFAR: pictures, uint8 (N, 3, 32, 32), and labels (N,).

    ``keys`` are the names of a picture's labels in the order of the binary version; ``label`` is
    the index of the one to return.
    """
    x: Any
    y: Any
    if binary:
        path += ".bin"
        data = np.frombuffer(_content(path), np.uint8)
        record_bytes = len(keys) + _PIXELS
        if not data.size or data.size % record_bytes:
            raise DataError(
                f"file {path} has {data.size} bytes; valid is a multiple of {record_bytes}"
            )
        rows = data.reshape(-1, record_bytes)
        x, y = rows[:, len(keys) :], rows[:, label].astype(np.int64)
    else:
        content = _unpickled(path)
        x = content.get(b"data") if isinstance(content, dict) else None
        labels = content.get(keys[label]) if isinstance(content, dict) else None
        y = np.asarray(labels) if isinstance(labels, list) else np.zeros(0)
        fits = isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.shape == (len(y), _PIXELS)
        if not fits or y.dtype.kind not in "iu" or not len(y):
            raise DataError(f"file {path} has no pictures with {keys[label].decode()}")
    if y.min() < 0 or y.max() >= classes:
        raise DataError(
            f"file {path} has labels from {y.min()} to {y.max()}; valid are 0 to {classes - 1}"
        )
    return x.reshape(-1, 3, 32, 32), y


def _names(base: str, binary: bool, kind: str, count: int) -> list[str] | int:
    """Returns the names of the classes if the folder has them, else their number."""
    path = os.path.join(base, f"{kind}_label_names.txt" if binary else "meta")
    if not os.path.isfile(path):
        return count
    if binary:
        names = _content(path).decode("utf-8", "replace").split()
    else:
        content = _unpickled(path)
        listed = content.get(f"{kind}_label_names".encode()) if isinstance(content, dict) else None
        names = [
            each.decode("utf-8", "replace") for each in listed or () if isinstance(each, bytes)
        ]
    if len(names) != count:
        raise DataError(f"file {path} has {len(names)} names of classes; valid are {count}")
    return names


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise DataError(f"file {path} cannot be read: {error.strerror}") from None


class _Restricted(pickle.Unpickler):
    """Unpickles NumPy arrays and Python's built-in literals alone, so no code of a file runs."""

    _KNOWN = (("_reconstruct", "multiarray"), ("ndarray", "numpy"), ("dtype", "numpy"))

    def find_class(self, module: str, name: str) -> Any:
        if (name, module.rpartition(".")[2]) in self._KNOWN and module.split(".")[0] == "numpy":
            if name == "_reconstruct":
                return _made
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _encode_latin1
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _made(kind: Any, shape: Any, code: Any) -> np.ndarray:
    """Stands for NumPy's ``_reconstruct``: an empty array, which the pickle's state then fills."""
    return np.ndarray.__new__(np.ndarray, (0,), "u1")


def _encode_latin1(text: str, encoding: str) -> bytes:
    """Stands for ``_codecs.encode``, by which pickles of protocol 2 hold bytes."""
    return text.encode("latin1")


def _unpickled(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            return _Restricted(file, encoding="bytes").load()
    except OSError as error:
        raise DataError(f"file {path} cannot be read: {error.strerror}") from None
    except Exception as error:  # whatever a damaged file makes of the reader
        raise DataError(f"file {path} is damaged or no file of CIFAR: {error}") from None


class Folder(Dataset):
    """The pictures below ``root``, whose folders are the classes, in the order of their names.

    A picture is resized and its centre cut out as torchvision does for its networks, unless the
    first step is a :class:`~minidnn.data.augment.ResizedCrop`, which takes the whole picture.
    Other files and hidden ones are ignored.  Pillow is needed (``minidnn[images]``).

    Args:
        root: a folder of folders.
        size: rows and columns of a sample.
        augment: as of a :class:`Dataset`.
        resize: pixels of the shorter side before the centre is cut out; by default ``size``.
        channels: 3 (red, green, blue) or 1 (grey).
        corrupt: "raise" raises for a picture that cannot be read when a batch needs it.  "skip"
            decodes all pictures now, which takes about as long as an epoch, warns of each that
            cannot be read, and leaves it out: so all batches are full, and the same on every run.

    Attributes:
        files: the paths; ``labels`` has the class of each.

    Raises:
        DataError: an argument is not valid, or the folder has no classes or no pictures.
        UnsupportedError: Pillow is not installed.

    >>> pictures = md.data.Folder("pictures", 32, [md.data.Flip(), md.data.Normalize()])
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        size: int,
        augment: Sequence[Step] = (),
        *,
        resize: int | None = None,
        channels: int = 3,
        corrupt: Literal["raise", "skip"] = "raise",
    ) -> None:
        for name, value, least in (("size", size, 1), ("resize", resize, size)):
            if not (value is None and name == "resize") and (
                type(value) is not int or value < least
            ):
                at_least = least if name == "size" else f"size={size}, or None"
                raise DataError(f"{name}={value!r:.80}; valid is an int of at least {at_least}")
        self._preparation = Preparation(size if resize is None else resize, size, channels)
        if corrupt not in ("raise", "skip"):
            raise DataError(f"corrupt={corrupt!r}; valid are 'raise' and 'skip'")
        self.root = os.fspath(root)
        classes = _classes(self.root)
        super().__init__(augment, classes)
        self._box = augment[0] if augment and isinstance(augment[0], ResizedCrop) else None
        if self._box:
            self.augment = self.augment[1:]
            if self._box.size != size:
                raise DataError(f"size={size} and {self._box} differ; valid are equal sizes")
        files_by_class = [list(_pictures(os.path.join(self.root, name))) for name in classes]
        files = [file for each in files_by_class for file in each]
        labels = [label for label, each in enumerate(files_by_class) for _ in each]
        if corrupt == "skip":
            with ThreadPoolExecutor() as threads:
                reasons = list(threads.map(self._why_corrupt, files))
            for reason in filter(None, reasons):
                warnings.warn(f"{reason}; it is skipped", MiniDNNWarning, stacklevel=2)
            files = [file for file, reason in zip(files, reasons, strict=True) if not reason]
            labels = [label for label, reason in zip(labels, reasons, strict=True) if not reason]
        self.files, self.labels = files, np.array(labels, np.int64)
        counts = np.bincount(self.labels, minlength=len(classes))
        for label, name in enumerate(classes):
            if not counts[label]:
                what = "readable picture" if files_by_class[label] else "picture file"
                raise DataError(
                    f"folder {os.path.join(self.root, name)} has no {what}; valid is at least one, "
                    "or no such folder"
                )

    def __len__(self) -> int:
        return len(self.files)

    def name(self, sample: int) -> str:
        return f"sample {sample} ({self.files[sample]})"

    def read(self, samples: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        numbers = draws.uniform(ResizedCrop.NUMBERS if self._box else 0)

        def read_sample(place: int, sample: int) -> tuple[np.ndarray, np.ndarray]:
            return self._read(self.files[sample], numbers[place]), self.labels[sample]

        return one_by_one(self, samples, read_sample)

    def _read(self, file: str, numbers: np.ndarray) -> np.ndarray:
        def take(picture: Any) -> np.ndarray:
            if self._box is None:
                return cut_centre(picture, preparation)
            from PIL import Image

            top, left, height, width = self._box.box(picture.height, picture.width, numbers)
            cut = picture.crop((left, top, left + width, top + height))
            size = self._box.size
            resized = cut.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(resized, np.uint8).reshape(size, size, preparation.channels)

        preparation = self._preparation
        resize = None if self._box else preparation.resize
        return as_numbers(decode(file, preparation.channels, take, resize).transpose(2, 0, 1))

    def _why_corrupt(self, file: str) -> str | None:
        try:
            self._read(file, np.zeros(ResizedCrop.NUMBERS))
        except PictureError as error:
            return str(error)
        return None


def _classes(root: str) -> list[str]:
    try:
        with os.scandir(root) as entries:
            names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError as error:
        raise DataError(f"folder {root} cannot be read: {error.strerror}") from None
    if not names:
        raise DataError(f"folder {root} has no folders; valid is a folder of pictures a class")
    return names


def _pictures(folder: str) -> Iterator[str]:
    """Yields the files with a picture's extension in a folder and below it, in a fixed order."""

    def refuse(error: OSError) -> None:
        raise DataError(f"folder {error.filename} cannot be read: {error.strerror}") from None

    picture_extensions = extensions()
    for base, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if os.path.splitext(name)[1].lower() in picture_extensions and not name.startswith("."):
                yield os.path.join(base, name)
