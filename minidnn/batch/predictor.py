"""A network, and how pictures are prepared for it, as one object that can be sent elsewhere."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

import minidnn
from minidnn.backends.backend import check_not_automatic, default_device
from minidnn.batch.files import is_remote, remote_files, split_url
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.dynamic.loaded import BatchExecutable
from minidnn.errors import GraphError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.pictures import PictureError, cut_centre, decode, normalized
from minidnn.preparation import Preparation
from minidnn.runtime.interface import Interface
from minidnn.sizes.sized_graph import SizedGraph

#: What a file system that others share may answer once, and not the next time.
_PASSING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN})
_ATTEMPTS = 3
#: What computes batches of one size, or of all in a range.
AnyExecutable = Executable | DynamicExecutable | BatchExecutable


@dataclass(frozen=True)
class PicturePrediction:
    """What a network says about a file.

    Attributes:
        values: by column; None if there is an error.
        error: why there are none; "" if there are.
    """

    file: str
    values: dict[str, Any] | None
    error: str = ""


class Predictor:
    """Predicts what is in picture files.

    It can be pickled: a copy compiles the network when it is first used, in the process that uses
    it.  Called with a table that has the column "file", a dict of sequences or a DataFrame, it
    returns one of the same kind with the columns "file", "error" (empty for a picture that could
    be read), and either "classes", "probabilities" and, with ``labels``, "labels", or "scores".
    So it is what ``map_batches`` of Ray Data, ``map_partitions`` of Dask and ``mapInPandas`` of
    Spark (which gives it an iterator: ``lambda tables: map(predictor, tables)``) want.

    Args:
        network: whatever :func:`minidnn.compile` takes with one input of square pictures; or a
            function of the number of pictures that returns that or an executable, which is called
            where pictures are predicted.  What is for a range of batches computes the last
            pictures, which are fewer, as they are; else zeros fill the batch.
        preparation: what is done to a picture (:class:`minidnn.Preparation`).
        top: how many classes are given; None for the scores, the network's own outputs, instead.
        labels: the names of the classes; by default those of the preparation.
        are_probabilities: whether the network gives probabilities; else its scores' softmax is
            taken.
        batch: pictures that are computed at once.
        threads: that read pictures, and, on a CPU, compute; by default all usable cores.
        device, precision: as for :func:`minidnn.compile`.

    Raises:
        GraphError: an argument is not valid; when it is first used, what compiling raises, and
            for a network that takes no pictures or gives no numbers for each.

    >>> predictor = md.batch.Predictor(net, md.Preparation(36, 32), top=1, batch=2)
    >>> table = predictor({"file": ["missing.png"]})
    >>> print(table["error"][0])
    """

    def __init__(
        self,
        network: Any,
        preparation: Preparation,
        *,
        top: int | None = 5,
        labels: Sequence[str] | None = None,
        are_probabilities: bool = False,
        batch: int = 32,
        threads: int | None = None,
        device: str | None = None,
        precision: str | None = None,
    ) -> None:
        if not isinstance(preparation, Preparation):
            raise GraphError(f"preparation={preparation!r:.80}; valid is a minidnn.Preparation")
        for name, value in (("top", top), ("batch", batch), ("threads", threads)):
            is_open = value is None and name != "batch"
            if not is_open and (type(value) is not int or value < 1):
                valid = "a whole number of at least 1" + (", or None" if name != "batch" else "")
                raise GraphError(f"{name}={value!r:.80}; valid is {valid}")
        # Each process would choose for itself, and pictures would be computed in several.
        check_not_automatic(precision, "predictions by several processes")
        self.network = network
        self.preparation = preparation
        self.top = top
        labels = preparation.classes if labels is None else labels
        self.labels = None if labels is None else list(labels)
        self.are_probabilities = are_probabilities
        self.batch = batch
        self.threads = threads
        self.device = device
        self.precision = precision
        self._executable: AnyExecutable | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_executable": None}

    @property
    def executable(self) -> AnyExecutable:
        """The compiled network, compiled when it is first asked for."""
        if self._executable is None:
            self._executable = self._checked(self._compiled())
        return self._executable

    def __call__(self, table: Any) -> Any:
        found = list(self.predict([str(file) for file in table["file"]]))
        columns: dict[str, list[Any]] = {
            "file": [each.file for each in found],
            "error": [each.error for each in found],
        }
        for name in self.columns:
            columns[name] = [None if p.values is None else p.values[name] for p in found]
        return columns if isinstance(table, Mapping) else type(table)(columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """What is given for each picture, in its order."""
        if self.top is None:
            return ("scores",)
        return ("classes", "probabilities", *(["labels"] if self.labels is not None else []))

    def predict(self, files: Sequence[str]) -> Iterator[PicturePrediction]:
        """Predictions in the order of the files.  A batch is read while the one before it is
        computed."""
        executable = self.executable
        size = most_rows(executable, self.batch)
        batches = [files[first : first + size] for first in range(0, len(files), size)]
        with ThreadPoolExecutor(self.threads or len(os.sched_getaffinity(0))) as readers:
            ahead: list[Future[np.ndarray | str]] = []
            for place, batch in enumerate(batches):
                pending = ahead or [readers.submit(self._read, file) for file in batch]
                following = batches[place + 1] if place + 1 < len(batches) else []
                ahead = [readers.submit(self._read, file) for file in following]
                yield from self._predicted(executable, batch, [each.result() for each in pending])

    def _predicted(
        self, executable: AnyExecutable, files: Sequence[str], read: Sequence[np.ndarray | str]
    ) -> Iterator[PicturePrediction]:
        # Pictures that cannot be read, and those missing in a batch of one size, stay zero.
        shape = interface_of(executable).inputs[0].shape
        x = np.zeros((rows_for(executable, len(files)), *shape[1:]), np.float32)
        for place, picture in enumerate(read):
            if not isinstance(picture, str):
                x[place] = picture
        y = _only(executable(x)).reshape(len(x), -1) if len(files) else x
        for file, picture, scores in zip(files, read, y, strict=False):
            if isinstance(picture, str):
                yield PicturePrediction(file, None, picture)
            else:
                yield self._judged(file, scores)

    def _judged(self, file: str, scores: np.ndarray) -> PicturePrediction:
        if wrong := int((~np.isfinite(scores)).sum()):
            reason = f"{wrong} of the network's {scores.size} outputs are not finite"
            return PicturePrediction(file, None, f"picture {file}: {reason}")
        if self.top is None:
            return PicturePrediction(file, {"scores": scores.tolist()})
        classes, shares = ranked(np.asarray(scores, np.float64), self.top, self.are_probabilities)
        values: dict[str, Any] = {"classes": classes, "probabilities": shares}
        if self.labels is not None:
            values["labels"] = [self.labels[each] for each in classes]
        return PicturePrediction(file, values)

    def _read(self, file: str) -> np.ndarray | str:
        """A picture as the network takes it, or why there is none.

        OSError if whatever has the files cannot be reached.
        """
        preparation = self.preparation
        for attempt in range(_ATTEMPTS):
            try:
                pixels = decode(
                    file,
                    preparation.channels,
                    partial(cut_centre, preparation=preparation),
                    preparation.resize,
                    _fetched(file) if is_remote(file) else None,
                )
            except PictureError as error:
                if not _may_pass(error) or attempt + 1 == _ATTEMPTS:
                    return str(error)
            except OSError as error:
                if attempt + 1 == _ATTEMPTS:
                    text = " ".join(str(error).split())[:300]
                    raise OSError(error.errno, text, file) from error
            else:
                return normalized(pixels, preparation)[0]
            time.sleep(0.2 * 4**attempt)
        raise AssertionError("the last attempt returns")

    def _compiled(self) -> AnyExecutable:
        network: Any = self.network
        if isinstance(network, (FunctionType, partial)):
            network = network(self.batch)
        if isinstance(network, AnyExecutable):
            return network
        given: dict[str, Any] = {"precision": self.precision}
        if (self.device or default_device()[0]) == "cpu":
            given["threads"] = self.threads
        options = {name: value for name, value in given.items() if value is not None}
        size = self.preparation.crop
        shape = None
        if not isinstance(network, (Graph, SizedGraph)):
            shape = (self.batch, self.preparation.channels, size, size)
        found: AnyExecutable = minidnn.compile(network, shape, device=self.device, **options)
        if isinstance(found, DynamicExecutable):
            found.warm([most_rows(found, self.batch)])  # of which most batches are
        return found

    def _checked(self, executable: AnyExecutable) -> AnyExecutable:
        interface, own = interface_of(executable), self.preparation
        inputs = [each.shape for each in interface.inputs]
        outputs = [each.shape for each in interface.outputs]
        wanted = (own.channels, own.crop, own.crop)
        is_fit = len(inputs) == len(outputs) == 1 and inputs[0][1:] == wanted
        if not is_fit or not outputs[0] or outputs[0][0] != inputs[0][0]:
            raise GraphError(
                f"network {interface.name!r} has inputs {inputs} and outputs {outputs}; valid are "
                f"one input (N, {own.channels}, {own.crop}, {own.crop}), as preparation says, and "
                "one output with as many rows"
            )
        count = int(np.prod(outputs[0][1:]))
        if self.labels is not None and len(self.labels) != count:
            raise GraphError(
                f"labels has {len(self.labels)} names; valid are {count}, one for each output"
            )
        return executable


def _only(result: Any) -> np.ndarray:
    """The one output, which a network may give by name."""
    (found,) = result.values() if isinstance(result, dict) else (result,)
    return np.asarray(found)


def _fetched(url: str) -> bytes:
    """A file's content; OSError, which says nothing of the file, if its store is out of reach."""
    return remote_files(split_url(url)[0]).read(url)


def _may_pass(error: BaseException | None) -> bool:
    """Whether a file system said what it may not say again, rather than a decoder."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _PASSING:
            return True
        error = error.__cause__ or error.__context__
    return False


def interface_of(executable: AnyExecutable) -> Interface:
    """What it takes and gives: for a range that for the smallest batch."""
    if isinstance(executable, Executable):
        return executable.interface
    return executable.at(**{dim.name: dim.least for dim in executable.dims}).interface


def most_rows(executable: AnyExecutable, wanted: int) -> int:
    """How many pictures it computes at once, of which ``wanted`` are enough."""
    if isinstance(executable, Executable):
        return executable.interface.inputs[0].shape[0]
    return executable.dims[0].up_to(wanted)


def rows_for(executable: AnyExecutable, pictures: int) -> int:
    """The rows of a batch for so many pictures: as many, if it computes so few and any number."""
    if isinstance(executable, Executable):
        return executable.interface.inputs[0].shape[0]
    batch = executable.dims[0]
    return max(batch.least, -(-pictures // batch.multiple) * batch.multiple)


def ranked(scores: np.ndarray, top: int, are_probabilities: bool) -> tuple[list[int], list[float]]:
    """The classes with the ``top`` highest scores, highest first and of equal ones the first, and
    their probabilities: the softmax of scores that are none."""
    shares = scores
    if not are_probabilities:
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
    order = np.argsort(-scores, kind="stable")[:top]
    return [int(index) for index in order], [float(shares[index]) for index in order]
