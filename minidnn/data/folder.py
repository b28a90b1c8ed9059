"""Pictures in folders, a class in each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from minidnn.data.augment import ResizedCrop
from minidnn.data.datasets import DataError, Dataset, Draws, Step, as_numbers, one_by_one
from minidnn.errors import MiniDNNWarning
from minidnn.pictures import PictureError, Preparation, cut_centre, decode, extensions

__all__ = ["Folder"]


class Folder(Dataset):
    """The pictures below ``root``, whose folders are the classes, in the order of their names.

    A picture is resized and its centre cut out as torchvision does for its networks, unless the
    first step is a :class:`~minidnn.data.augment.ResizedCrop`, which takes the whole picture.
    Other files, and what is hidden, are left alone.  Pillow is needed (``minidnn[images]``).

    Args:
        root: a folder of folders.
        size: rows and columns of what is cut out.
        augment: as of a :class:`Dataset`.
        resize: pixels of the shorter side before that (``size``).
        channels: 3 (red, green, blue) or 1 (grey).
        corrupt: "raise" refuses a picture that cannot be read when it is its turn.  "skip" decodes
            all of them now, which takes about as long as an epoch, warns of each that cannot be
            read, and leaves it out: so all batches are full, and the same on every run.

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
        found = [list(_pictures(os.path.join(self.root, name))) for name in classes]
        files = [file for each in found for file in each]
        labels = [label for label, each in enumerate(found) for _ in each]
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
                what = "readable picture" if found[label] else "picture file"
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

        def one(place: int, sample: int) -> tuple[np.ndarray, np.ndarray]:
            return self._read(self.files[sample], numbers[place]), self.labels[sample]

        return one_by_one(self, samples, one)

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
    """Files that are named as pictures, here and below, in a fixed order."""

    def refuse(error: OSError) -> None:
        raise DataError(f"folder {error.filename} cannot be read: {error.strerror}") from None

    known = extensions()
    for base, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if os.path.splitext(name)[1].lower() in known and not name.startswith("."):
                yield os.path.join(base, name)
