"""The predictor: a network and the preparation of its pictures, in one object that pickles.

It reads picture files, runs the network in batches, and ranks the classes.  :mod:`minidnn.batch`
runs one in every worker process.
"""

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

#: Transient errors of a shared file system: reading again may succeed.
_TRANSIENT = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN})
_ATTEMPTS = 3
#: A compiled network, for one batch size or for a range of them.
AnyExecutable = Executable | DynamicExecutable | BatchExecutable


@dataclass(frozen=True)
class PicturePrediction:
    """The prediction for one file.

    Attributes:
        values: the values by column (:attr:`Predictor.columns`); None if there is an error.
        error: why there are no values; "" if there are.
    """

    file: str
    values: dict[str, Any] | None
    error: str = ""


class Predictor:
    """Predicts what is in picture files.

    It can be pickled: a copy compiles the network on first use, in the process that uses it.
    Called with a table that has the column "file", a dict of sequences or a DataFrame, it returns
    one of the same kind with the columns "file", "error" (empty for a picture that could be read),
    and either "classes", "probabilities" and, with ``labels``, "labels", or "scores".  So it fits
    ``map_batches`` of Ray Data, ``map_partitions`` of Dask and ``mapInPandas`` of Spark (which
    passes an iterator: ``lambda tables: map(predictor, tables)``).

    Args:
        network: whatever :func:`minidnn.compile` takes with one input of square pictures; or a
            function of the batch size that returns that or an executable, which is called in the
            process that predicts.  An executable for a range of batches computes the last, smaller
            batch as it is; others fill it with zeros.
        preparation: how a picture is prepared (:class:`minidnn.Preparation`).
        top: how many classes to return; None returns the scores, the network's outputs, instead.
        labels: the names of the classes; by default those of the preparation.
        are_probabilities: whether the network's outputs are probabilities; else they are scores,
            and softmax makes probabilities of them.
        batch: pictures in a batch.
        threads: threads that read pictures and, on a CPU, compute; by default all usable cores.
        device, precision: as for :func:`minidnn.compile`; an executable is of these already.

    Raises:
        GraphError: an argument is not valid; on first use, whatever compiling raises, or the
            network does not map pictures to a row of numbers each.

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
                valid = "an integer of at least 1" + (", or None" if name != "batch" else "")
                raise GraphError(f"{name}={value!r:.80}; valid is {valid}")
        # Each process would choose for itself, and pictures would be computed in several.
        check_not_automatic(precision, "predictions by several processes")
        if top is None and labels is not None:
            raise GraphError(f"labels={labels!r:.80} with top=None; valid is top, or no labels")
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
        """The compiled network, compiled on first use."""
        if self._executable is None:
            self._executable = self._checked(self._compiled())
        return self._executable

    def __call__(self, table: Any) -> Any:
        predictions = list(self.predict([str(file) for file in table["file"]]))
        columns: dict[str, list[Any]] = {
            "file": [prediction.file for prediction in predictions],
            "error": [prediction.error for prediction in predictions],
        }
        for name in self.columns:
            columns[name] = [None if p.values is None else p.values[name] for p in predictions]
        return columns if isinstance(table, Mapping) else type(table)(columns)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values of each prediction, in order."""
        if self.top is None:
            return ("scores",)
        return ("classes", "probabilities", *(["labels"] if self.labels is not None else []))

    def predict(self, files: Sequence[str]) -> Iterator[PicturePrediction]:
        """Yields predictions in the order of the files.

        A batch is read and decoded while the one before it is computed.
        """
        executable = self.executable
        size = most_rows(executable, self.batch)
        batches = [files[first : first + size] for first in range(0, len(files), size)]
        with ThreadPoolExecutor(self.threads or len(os.sched_getaffinity(0))) as readers:
            ahead: list[Future[np.ndarray | str]] = []
            for index, batch in enumerate(batches):
                pending = ahead or [readers.submit(self._read, file) for file in batch]
                following = batches[index + 1] if index + 1 < len(batches) else []
                ahead = [readers.submit(self._read, file) for file in following]
                yield from self._predicted(
                    executable, batch, [future.result() for future in pending]
                )

    def _predicted(
        self, executable: AnyExecutable, files: Sequence[str], read: Sequence[np.ndarray | str]
    ) -> Iterator[PicturePrediction]:
        """Computes one batch; ``read`` has for each file its picture, or why there is none."""
        # Rows of pictures that cannot be read, and those that pad a fixed batch size, stay zero.
        shape = interface_of(executable).inputs[0].shape
        x = np.zeros((rows_for(executable, len(files)), *shape[1:]), np.float32)
        for row, picture in enumerate(read):
            if not isinstance(picture, str):
                x[row] = picture
        y = _single_output(executable(x)).reshape(len(x), -1) if len(files) else x
        for file, picture, scores in zip(files, read, y, strict=False):
            if isinstance(picture, str):
                yield PicturePrediction(file, None, picture)
            else:
                yield self._prediction_of(file, scores)

    def _prediction_of(self, file: str, scores: np.ndarray) -> PicturePrediction:
        if nonfinite := int((~np.isfinite(scores)).sum()):
            reason = f"{nonfinite} of the network's {scores.size} outputs are not finite"
            return PicturePrediction(file, None, f"picture {file}: {reason}")
        if self.top is None:
            return PicturePrediction(file, {"scores": scores.tolist()})
        classes, probabilities = ranked(
            np.asarray(scores, np.float64), self.top, self.are_probabilities
        )
        values: dict[str, Any] = {"classes": classes, "probabilities": probabilities}
        if self.labels is not None:
            values["labels"] = [self.labels[index] for index in classes]
        return PicturePrediction(file, values)

    def _read(self, file: str) -> np.ndarray | str:
        """Returns a picture as the network takes it, (channels, crop, crop), or why there is none.

        OSError if the file system or store cannot be reached.
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
                if not _is_transient(error) or attempt + 1 == _ATTEMPTS:
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
        """Compiles the network; of a range of batches, the size of most batches."""
        network: Any = self.network
        if isinstance(network, (FunctionType, partial)):
            network = network(self.batch)
        if isinstance(network, AnyExecutable):
            self._check_options(network)
            return network
        settings: dict[str, Any] = {"precision": self.precision}
        if (self.device or default_device()[0]) == "cpu":
            settings["threads"] = self.threads
        options = {name: value for name, value in settings.items() if value is not None}
        size = self.preparation.crop
        shape = None
        if not isinstance(network, (Graph, SizedGraph)):
            shape = (self.batch, self.preparation.channels, size, size)
        executable: AnyExecutable = minidnn.compile(network, shape, device=self.device, **options)
        if isinstance(executable, DynamicExecutable):
            executable.warm([most_rows(executable, self.batch)])  # the size of most batches
        return executable

    def _check_options(self, executable: AnyExecutable) -> None:
        """GraphError if an executable is of another device or precision than is asked for."""
        for name in ("device", "precision"):
            wanted, own = getattr(self, name), getattr(executable, name)
            if wanted is not None and wanted not in (own, own.partition(":")[0]):
                raise GraphError(
                    f"{name}={wanted!r:.80} with an executable of {name} {own!r}; valid is the "
                    "same, or None"
                )

    def _checked(self, executable: AnyExecutable) -> AnyExecutable:
        """Returns the executable; GraphError unless it maps pictures to a row of scores each."""
        interface, own = interface_of(executable), self.preparation
        inputs = [value.shape for value in interface.inputs]
        outputs = [value.shape for value in interface.outputs]
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


def _single_output(result: Any) -> np.ndarray:
    """Returns the single output of an executable, which may return a dict by name."""
    (output,) = result.values() if isinstance(result, dict) else (result,)
    return np.asarray(output)


def _fetched(url: str) -> bytes:
    """Fetches a URL's content; OSError if the store cannot be reached, whatever the file is."""
    return remote_files(split_url(url)[0]).read(url)


def _is_transient(error: BaseException | None) -> bool:
    """Whether an error is a transient one of the file system, and not one of the decoder."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _TRANSIENT:
            return True
        error = error.__cause__ or error.__context__
    return False


def interface_of(executable: AnyExecutable) -> Interface:
    """The inputs and outputs of an executable; of a range of batches, for the smallest one."""
    if isinstance(executable, Executable):
        return executable.interface
    return executable.at(**{dim.name: dim.least for dim in executable.dims}).interface


def most_rows(executable: AnyExecutable, wanted: int) -> int:
    """The largest batch size of an executable that is useful when ``wanted`` pictures are enough.

    An executable for one batch size has that size, even if it is larger.
    """
    if isinstance(executable, Executable):
        return executable.interface.inputs[0].shape[0]
    return executable.dims[0].up_to(wanted)


def rows_for(executable: AnyExecutable, pictures: int) -> int:
    """The smallest batch size of an executable that holds so many pictures."""
    if isinstance(executable, Executable):
        return executable.interface.inputs[0].shape[0]
    batch = executable.dims[0]
    return max(batch.least, -(-pictures // batch.multiple) * batch.multiple)


def ranked(scores: np.ndarray, top: int, are_probabilities: bool) -> tuple[list[int], list[float]]:
    """Returns the classes with the ``top`` highest scores, and their probabilities.

    The highest score comes first, of equal ones the lower class.  Scores that are no probabilities
    become some by softmax.
    """
    probabilities = scores
    if not are_probabilities:
        probabilities = np.exp(scores - scores.max())
        probabilities /= probabilities.sum()
    order = np.argsort(-scores, kind="stable")[:top]
    return [int(index) for index in order], [float(probabilities[index]) for index in order]
