"""The data sets of ``--data``: folders of pictures, scikit-learn's digits, Fashion-MNIST."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from minidnn.errors import MiniDNNError
from minidnn.preparation import Preparation

if TYPE_CHECKING:
    import numpy as np

    from minidnn.data import Dataset, Draws
    from minidnn.data.datasets import Arrays

DIGITS, FASHION = "digits", "fashion-mnist"
BUNDLED_HELP = (
    "digits: scikit-learn's; fashion-mnist:FOLDER: its four files, or MNIST's (./digits is a "
    "folder of that name)"
)
DATA_HELP = f"a folder with a folder of pictures for each class; {BUNDLED_HELP}"
#: Values of ``--augment``.
AUGMENTATIONS = ("photos", "shifts", "affine", "none")
_VALIDATION = ("val", "validation", "test")
#: The share of each class that is held out.
_SHARE = 0.2


def is_bundled(source: str) -> bool:
    """Whether ``--data`` names digits or Fashion-MNIST; MiniDNNError if the latter has no
    folder."""
    kind, _, folder = source.partition(":")
    if kind == FASHION and not folder:
        raise MiniDNNError(f"--data {source}: valid is {FASHION}:FOLDER")
    return (kind == DIGITS and not folder) or kind == FASHION


def bundled(source: str, train: bool) -> Arrays:
    """The unprepared grey pictures of such a data set, to train on or to evaluate on."""
    from minidnn import data

    folder = source.partition(":")[2]
    return data.fashion_mnist(folder, train) if folder else data.digits(train)


def prepare(dataset: Arrays, preparation: Preparation, change: Sequence[Any] = ()) -> None:
    """Sets the steps that make a network's inputs of pictures: resizing, ``change``, normalization.

    Pictures are resized without a crop, since their content reaches to the edges.
    """
    from minidnn import data

    size = preparation.crop
    is_other = size != dataset.x.shape[-1]
    resize = [data.ResizedCrop(size, (1.0, 1.0), (1.0, 1.0))] if is_other else []
    colours = [_colours] if preparation.channels == 3 else []
    dataset.augment = (*resize, *change, *colours, *normalize(preparation))


def normalize(preparation: Preparation) -> list[Any]:
    """The step that normalizes as ``minidnn classify`` does; none if it would change nothing."""
    from minidnn.data import Normalize

    mean, std = preparation.mean, preparation.std
    assert mean is not None and std is not None
    return [] if not any(mean) and set(std) == {1.0} else [Normalize(mean, std)]


def _colours(x: np.ndarray, draws: Draws) -> np.ndarray:
    return x.repeat(3, axis=1)


def held_out_and_train(
    options: argparse.Namespace, channels: int, own_size: int, known: Preparation | None
) -> tuple[Dataset, Dataset, Preparation]:
    """The pictures to evaluate on, those to train on, and the preparation of both.

    The network takes ``channels`` channels, and pictures of ``own_size`` by default.  ``known`` is
    the preparation of the initial weights, which is kept.  Raises DataError if there are no
    pictures, or if the classes differ.
    """
    if is_bundled(options.data):
        if options.validate:
            kind = options.data.partition(":")[0]
            raise MiniDNNError(f"--validate: {kind} has pictures to evaluate on")
        return _bundled(options, channels, known)
    if known is not None:
        preparation = known if options.size is None else known.resized(options.size)
    else:
        size = options.size or own_size
        # As for the networks of the zoo, pictures are resized larger, and their centre is cropped.
        preparation = Preparation(size if channels == 1 else round(size * 8 / 7), size, channels)
    held_out, train = _folders(options, preparation)
    return held_out, train, replace(preparation, classes=train.classes)


def _bundled(
    options: argparse.Namespace, channels: int, known: Preparation | None
) -> tuple[Dataset, Dataset, Preparation]:
    held_out, train = bundled(options.data, False), bundled(options.data, True)
    size = options.size or (train.x.shape[-1] if known is None else known.crop)
    preparation = replace(known or Preparation(size, size, channels), resize=size, crop=size)
    default_augmentation = "affine" if options.data == DIGITS else "shifts"
    prepare(held_out, preparation)
    prepare(train, preparation, _augment(options.augment or default_augmentation, size))
    return held_out, train, replace(preparation, classes=train.classes)


def _folders(options: argparse.Namespace, preparation: Preparation) -> tuple[Dataset, Dataset]:
    import numpy as np

    from minidnn.data import DataError, Folder, Subset

    root, validate = split_folder(options.data, options.validate)
    size = preparation.crop

    def open_folder(path: str, steps: Sequence[Callable[..., np.ndarray]]) -> Folder:
        return Folder(
            path,
            size,
            [*steps, *normalize(preparation)],
            resize=preparation.resize,
            channels=preparation.channels,
            corrupt="skip" if options.skip_corrupt else "raise",
        )

    train = open_folder(root, _augment(options.augment or "photos", size))
    if len(train.classes) < 2:
        raise DataError(f"folder {root} has one class, {train.classes[0]}; valid are at least two")
    held_out = open_folder(validate or root, ())
    if held_out.classes != train.classes:
        differing = sorted({*train.classes} ^ {*held_out.classes})
        raise DataError(
            f"folders {root} and {validate} differ in {', '.join(differing[:8])}; valid "
            "are folders with the same classes"
        )
    if validate is not None:
        return held_out, train
    random = np.random.default_rng(options.seed)
    is_held_out = np.zeros(len(train), bool)
    for label in range(len(train.classes)):
        members = random.permutation(np.flatnonzero(train.labels == label))
        is_held_out[members[: round(_SHARE * len(members))]] = True
    if not is_held_out.any():
        raise DataError(
            f"folder {root} has so few pictures of each class that none is held out; --validate "
            "FOLDER has others"
        )
    return (
        Subset(held_out, np.flatnonzero(is_held_out)),
        Subset(train, np.flatnonzero(~is_held_out)),
    )


def split_folder(root: str, validate: str | None) -> tuple[str, str | None]:
    """The folder of training data and the folder of validation data, or None for the latter.

    Without ``validate``, both may be subfolders of ``root``: "train", and one of the usual names.
    """
    if validate is None and os.path.isdir(os.path.join(root, "train")):
        folders = [path for name in _VALIDATION if os.path.isdir(path := os.path.join(root, name))]
        if folders:
            return os.path.join(root, "train"), folders[0]
    return root, validate


def _augment(name: str, size: int) -> list[Any]:
    from minidnn import data

    steps: dict[str, list[Any]] = {
        "photos": [data.ResizedCrop(size), data.Flip()],
        "shifts": [data.RandomCrop(size, padding=max(1, size // 8)), data.Flip()],
        "affine": [data.Affine(degrees=15, shift=0.1, scale=0.15, shear=0.15)],
        "none": [],
    }
    return steps[name]
