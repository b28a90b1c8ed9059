"""Pictures that ``--data`` names rather than a folder of them: scikit-learn's digits, and MNIST's
kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minidnn.errors import MiniDNNError

if TYPE_CHECKING:
    import numpy as np

    from minidnn.data import Draws
    from minidnn.data.datasets import Arrays
    from minidnn.preparation import Preparation

DIGITS, FASHION = "digits", "fashion-mnist"
BUNDLED_HELP = (
    "digits: scikit-learn's; fashion-mnist:FOLDER: its four files, or MNIST's (./digits is a "
    "folder of that name)"
)


def is_bundled(source: str) -> bool:
    """Whether ``--data`` names such pictures; MiniDNNError if a folder is missing."""
    kind, _, folder = source.partition(":")
    if kind == FASHION and not folder:
        raise MiniDNNError(f"--data {source}: valid is {FASHION}:FOLDER")
    return (kind == DIGITS and not folder) or kind == FASHION


def bundled(source: str, train: bool) -> Arrays:
    """Grey pictures as they are, to train on or to evaluate on."""
    from minidnn import data

    folder = source.partition(":")[2]
    return data.fashion_mnist(folder, train) if folder else data.digits(train)


def prepare(dataset: Arrays, preparation: Preparation, change: Sequence[Any] = ()) -> None:
    """Has pictures become what a network takes, with the steps of a change at random in between.

    Nothing is cut off: what is drawn reaches to the edges.
    """
    from minidnn import data

    size = preparation.crop
    is_other = size != dataset.x.shape[-1]
    resize = [data.ResizedCrop(size, (1.0, 1.0), (1.0, 1.0))] if is_other else []
    colours = [_colours] if preparation.channels == 3 else []
    dataset.augment = (*resize, *change, *colours, *normalize(preparation))


def normalize(preparation: Preparation) -> list[Any]:
    """The step that normalizes as ``minidnn classify`` does, if it changes anything."""
    from minidnn.data import Normalize

    mean, std = preparation.mean, preparation.std
    assert mean is not None and std is not None
    return [] if not any(mean) and set(std) == {1.0} else [Normalize(mean, std)]


def _colours(x: np.ndarray, draws: Draws) -> np.ndarray:
    return x.repeat(3, axis=1)
