"""The data of ``minidnn quantize --data``: pictures or arrays, with or without labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from minidnn.cli.datasets import DIGITS, FASHION, bundled, is_bundled, normalize, prepare
from minidnn.errors import MiniDNNError

if TYPE_CHECKING:
    from minidnn.data import Dataset
    from minidnn.graph.ir import Graph
    from minidnn.preparation import Preparation

_LABELS = "y"
_ENDINGS = (".npy", ".npz")
Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class CalibrationData:
    """Samples for a network, which are read by their indices.

    Attributes:
        count: how many samples there are.
        read: returns an array for each input of the network, with the samples at these indices.
        labels: the class of each sample; None if they are not known.
        why_no_labels: why they are not known; "" if they are.
        are_pictures: whether the samples are pictures that this module prepared.
    """

    count: int
    read: Callable[[np.ndarray], Arrays]
    labels: np.ndarray | None
    why_no_labels: str = ""
    are_pictures: bool = False

    def batches(self, rows: int, most: int | None = None) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yields batches of ``rows`` samples with their indices: at most ``most`` samples, evenly
        spread.  The last batch is filled up with the first samples."""
        count = self.count if most is None else min(most, self.count)
        numbers = np.linspace(0, self.count, count, endpoint=False).astype(np.int64)
        full = np.resize(numbers, -(-count // rows) * rows)
        for first in range(0, len(full), rows):
            batch = full[first : first + rows]
            yield batch, self.read(batch)


def calibration_data(
    source: str,
    graph: Graph,
    preparation: Preparation | None,
    workers: int,
    *,
    held_out: bool = False,
) -> CalibrationData:
    """The samples for a network that ``--data`` names.

    Args:
        source: value of the option.
        graph: of the network.
        preparation: of pictures; None if the network takes no pictures.
        workers: threads that read pictures.
        held_out: whether to take the samples to evaluate on, if the source also has others to
            train on.

    Raises:
        MiniDNNError: there are none, or they do not fit the network.
    """
    ending = os.path.splitext(source)[1].lower()
    if ending in _ENDINGS and os.path.isfile(source):
        return _of_arrays(source, ending, graph)
    if not is_bundled(source) and not os.path.isdir(source):
        raise MiniDNNError(
            f"--data {source}: there is no such folder; valid are a folder, a file that ends in "
            f"{' or '.join(_ENDINGS)}, {DIGITS} and {FASHION}:FOLDER"
        )
    if preparation is None:
        shapes = [value.shape for value in graph.inputs]
        raise MiniDNNError(
            f"--data {source}: the network takes {shapes}, which pictures do not become; valid is "
            "a file with arrays"
        )
    dataset, class_indices = _dataset(source, preparation, held_out)
    labels, reason = None, f"{source} has no folders of classes"
    if class_indices is not None:
        outputs = int(np.prod(graph.outputs[0].shape[1:]))
        outputs_of_classes, reason = _places(dataset.classes, preparation.classes, outputs)
        labels = None if outputs_of_classes is None else outputs_of_classes[class_indices]
    return _of_dataset(dataset, labels, reason, workers)


def _dataset(
    source: str, preparation: Preparation, held_out: bool
) -> tuple[Dataset, np.ndarray | None]:
    """Prepared pictures, and the class index of each, or None if there are no classes."""
    from minidnn.data import Folder, Samples

    if is_bundled(source):
        arrays = bundled(source, not held_out)
        prepare(arrays, preparation)
        return arrays, arrays.y
    with os.scandir(source) as entries:
        has_classes = any(each.is_dir() and not each.name.startswith(".") for each in entries)
    if not has_classes:
        return Samples(_Pictures(source, preparation)), None
    size, resize, channels = preparation.crop, preparation.resize, preparation.channels
    steps = normalize(preparation)
    folder = Folder(source, size, steps, resize=resize, channels=channels)
    return folder, folder.labels


def _of_dataset(
    dataset: Dataset, labels: np.ndarray | None, reason: str, workers: int
) -> CalibrationData:
    from minidnn.data import Loader, Subset

    def read(numbers: np.ndarray) -> Arrays:
        # For a batch of pictures, starting threads pays off.
        loader = Loader(Subset(dataset, numbers), len(numbers), workers=workers)
        try:
            (batch,) = [x for x, _ in loader]
        finally:
            loader.close()
        return (batch,)

    return CalibrationData(len(dataset), read, labels, reason, are_pictures=True)


class _Pictures(Sequence[tuple[np.ndarray, int]]):
    """The pictures in a folder, without classes."""

    def __init__(self, folder: str, preparation: Preparation) -> None:
        from minidnn.cli.classify import expand

        self._files, self._preparation = list(expand([folder])), preparation

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: Any) -> Any:
        from minidnn.pictures import read_picture

        return read_picture(self._files[number], self._preparation)[0], 0


def _places(
    folders: Sequence[str], classes: Sequence[str] | None, outputs: int
) -> tuple[np.ndarray | None, str]:
    """The index of the network's output for each class of the data, or why it is not known."""
    if classes is not None and set(folders) <= set(classes):
        return np.array([classes.index(name) for name in folders]), ""
    if classes is not None:
        unknown = [name for name in folders if name not in classes]
        return None, f"of the classes, {', '.join(unknown[:4])} are none of the network's"
    if len(folders) != outputs:
        return None, f"there are {len(folders)} classes, and the network has {outputs} outputs"
    return np.arange(outputs), ""


def _of_arrays(source: str, ending: str, graph: Graph) -> CalibrationData:
    try:
        if ending == ".npy":
            by_name = {"x": np.load(source, mmap_mode="r", allow_pickle=False)}
        else:
            with open(source, "rb") as file, np.load(file, allow_pickle=False) as archive:
                by_name = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
        raise MiniDNNError(f"--data {source} cannot be read: {error}") from error
    labels = by_name.pop(_LABELS, None)
    names = [value.name for value in graph.inputs]
    if len(names) == 1 and list(by_name) == ["x"]:
        by_name = {names[0]: by_name["x"]}
    if sorted(by_name) != sorted(names):
        raise MiniDNNError(
            f"--data {source} has arrays {', '.join(by_name)}; valid are {', '.join(names)}, and "
            f"{_LABELS} for the classes"
        )
    arrays = [by_name[name] for name in names]
    for value, array in zip(graph.inputs, arrays, strict=True):
        kinds = np.dtype(value.dtype).kind, array.dtype.kind
        if array.shape[1:] != value.shape[1:] or not len(array) or kinds[0] != kinds[1]:
            raise MiniDNNError(
                f"--data {source}: array {value.name} is {array.dtype}{list(array.shape)}; valid "
                f"is {value.dtype}{['N', *value.shape[1:]]}"
            )
    count = len(arrays[0])
    if any(len(array) != count for array in arrays):
        lengths = [len(array) for array in arrays]
        raise MiniDNNError(f"--data {source}: arrays have {lengths} samples; valid are equal")
    if labels is not None:
        _check_labels(source, labels, count, int(np.prod(graph.outputs[0].shape[1:])))
    reason = "" if labels is not None else f"{source} has no array {_LABELS} with the classes"
    return CalibrationData(
        count, lambda numbers: tuple(array[numbers] for array in arrays), labels, reason
    )


def _check_labels(source: str, labels: np.ndarray, count: int, outputs: int) -> None:
    is_valid = labels.shape == (count,) and labels.dtype.kind in "iu"
    if not is_valid or not 0 <= labels.min() <= labels.max() < outputs:
        raise MiniDNNError(
            f"--data {source}: array {_LABELS} is {labels.dtype}{list(labels.shape)}; valid are "
            f"{count} integers from 0 to {outputs - 1}"
        )
