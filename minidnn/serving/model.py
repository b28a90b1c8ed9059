"""Loads a model for serving: one executable for each of several batch sizes.

:func:`load` compiles a model, tries it, and times its executables; :class:`ServedModel` runs the
requests that share a batch by the fastest combination of them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from minidnn.dynamic.dim import Dim
from minidnn.dynamic.split import BatchPart, parts_of
from minidnn.errors import UnsupportedError
from minidnn.executable import Executable, results_of
from minidnn.measure import interleaved
from minidnn.preparation import Preparation, check_takes
from minidnn.runtime.arrays import random_array
from minidnn.serving.tensors import DATATYPES, Spec

_RUNS = 3
"""The number of runs by which executables of several sizes are compared."""

_ALIKE = 1.15
"""The factor by which times of a few runs on a busy machine may differ by chance."""


@dataclass(frozen=True)
class Opened:
    """A network that was read, and can be compiled for several batch sizes.

    Attributes:
        compile: returns the executable for a number of rows; for None, of the network's own size.
        any_batch: whether ``compile`` takes a number of rows.
        batch: the valid numbers of rows; None for any number.
        sizes: the numbers of rows for which executables exist; None if any can be compiled.
        preparation: how pictures are prepared for it; None if that is not known.
    """

    compile: Callable[[int | None], Executable]
    any_batch: bool
    preparation: Preparation | None = None
    batch: Dim | None = None
    sizes: Sequence[int] | None = None


@dataclass(frozen=True)
class Source:
    """The origin of a version of a model; ``open`` reads the model anew at each call."""

    name: str
    version: int
    platform: str
    open: Callable[[], Opened]


class ServedModel:
    """The executables of a model, and the specifications of its inputs and outputs.

    Attributes:
        batch: the valid numbers of rows of a request; 1 for a model that takes no batches.
        max_rows: the most rows of a batch that several requests share; a larger request has a batch
            of its own.
        preparation: how callers prepare pictures for it; None if that is not known.
    """

    preparation: Preparation | None = None

    def __init__(
        self,
        source: Source,
        executables: dict[int, Executable],
        seconds: Mapping[int, float],
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        batch: Dim,
        max_rows: int,
    ) -> None:
        """``seconds`` has the run time of each executable, by its number of rows."""
        self.source = source
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._executables = executables
        self._seconds = seconds
        self.sizes = sorted(executables)
        self.batch = batch
        self.max_rows = max_rows
        #: By numbers of rows: the parts in which such a batch is computed.
        self._parts: dict[int, tuple[BatchPart, ...]] = {}
        #: Buffers in which batches are gathered; one set is enough, as batches run one by one.
        self._gathered: list[np.ndarray] = []

    def run(
        self, requests: Sequence[Sequence[np.ndarray]], rows: Sequence[int]
    ) -> list[list[np.ndarray]]:
        """The outputs of each request, which has ``rows`` rows; all are computed in one batch."""
        total = sum(rows)
        parts = self.parts_of(total)
        is_whole = len(requests) == 1 and max(part.end for part in parts) == total
        inputs = requests[0] if is_whole else self._gather(parts, requests, rows)
        results = self._compute(parts, inputs)
        if is_whole:
            return [results]
        outputs, begin = [], 0
        for count in rows:
            outputs.append([result[begin : begin + count] for result in results])
            begin += count
        return outputs

    def parts_of(self, total: int) -> tuple[BatchPart, ...]:
        """The parts in which a batch of so many rows is computed.

        The batch is split between executables, or padded to the next larger size, whichever takes
        less time.
        """
        if total not in self._parts:
            parts = parts_of(total, self._seconds)
            split = sum(self._seconds[part.rows] for part in parts or ())
            larger = self.sizes[bisect_left(self.sizes, total) :][:1]
            if larger and (parts is None or self._seconds[larger[0]] <= split):
                parts = (BatchPart(0, larger[0]),)
            assert parts is not None, "rows are in range"
            self._parts[total] = parts
        return self._parts[total]

    def _compute(
        self, parts: Sequence[BatchPart], inputs: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Runs the parts of a batch, and concatenates their outputs."""
        pieces = [
            results_of(
                self._executables[part.rows], [array[part.begin : part.end] for array in inputs]
            )
            for part in parts
        ]
        if len(pieces) == 1:
            return pieces[0]
        rows = max(part.end for part in parts)
        outputs = [np.empty((rows, *output.shape[1:]), output.dtype) for output in pieces[0]]
        for part, piece in zip(parts, pieces, strict=True):
            for result, output in zip(outputs, piece, strict=True):
                result[part.begin : part.end] = output
        return outputs

    def _gather(
        self,
        parts: Sequence[BatchPart],
        requests: Sequence[Sequence[np.ndarray]],
        rows: Sequence[int],
    ) -> list[np.ndarray]:
        """Copies the inputs of all requests into the buffers, with zeros in rows of padding."""
        total, computed = sum(rows), max(part.end for part in parts)
        if not self._gathered or self._gathered[0].shape[0] < computed:
            shapes = [(max(computed, self.max_rows), *spec.shape) for spec in self.inputs]
            self._gathered = [
                np.zeros(shape, spec.dtype) for shape, spec in zip(shapes, self.inputs, strict=True)
            ]
        begin = 0
        for request, count in zip(requests, rows, strict=True):
            for buffer, array in zip(self._gathered, request, strict=True):
                buffer[begin : begin + count] = array
            begin += count
        for buffer in self._gathered:
            buffer[total:] = 0  # clears rows of earlier requests in the padding
        return self._gathered


def load(source: Source, max_batch: int) -> ServedModel:
    """Reads, compiles and tries a model.

    Raises the errors of reading and compiling, and UnsupportedError for a model that takes any
    batch size, but whose rows are not independent of each other.
    """
    opened = source.open()
    model = _loaded(source, opened, max_batch)
    shapes = [(None, *spec.shape) if spec.batched else spec.shape for spec in model.inputs]
    check_takes(opened.preparation, source.name, shapes)
    model.preparation = opened.preparation
    return model


def _loaded(source: Source, opened: Opened, max_batch: int) -> ServedModel:
    """Compiles, tries and times the executables of a network."""
    if not opened.any_batch:
        return _of_own_size(source, opened.compile(None))
    batch = opened.batch or Dim("rows", 1, max_batch)
    most = batch.up_to(max_batch)
    sizes = opened.sizes or sizes_of(most, batch.least)
    executables = {size: opened.compile(size) for size in sizes}
    tried = {size: _try(each) for size, each in executables.items()}
    for size, (inputs, outputs) in tried.items():
        if any(array.shape[:1] != (size,) for array in (*inputs, *outputs)):
            shapes = [array.shape for array in (*inputs, *outputs)]
            raise UnsupportedError(
                f"model {source.name!r} of {size} rows has inputs and outputs of {shapes}; valid "
                "are those whose first axis is the batch, or a file with sizes of its own"
            )
    if (reason := _mixes_rows(executables[sizes[-1]])) is not None:
        raise UnsupportedError(
            f"model {source.name!r}: {reason}, so requests cannot share a batch; valid is "
            "--max-batch 1"
        )
    seconds = evened(_seconds(executables))
    common = source, executables, seconds, *tried[sizes[-1]]
    return _model(*common, batched=True, batch=batch, max_rows=most)


def sizes_of(most: int, least: int = 1) -> list[int]:
    """Batch sizes: ``least``, its doubles, and ``most``."""
    sizes = [least]
    while 2 * sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return sizes if sizes[-1] == most else [*sizes, most]


def _of_own_size(source: Source, executable: Executable) -> ServedModel:
    """A model of one batch size.

    If all inputs and outputs share a first axis and its rows are independent, requests may have any
    number of rows up to that size; else a request has the model's own shapes.
    """
    inputs, outputs = _try(executable)
    first = {array.shape[:1] for array in (*inputs, *outputs)}
    batched = len(first) == 1 and () not in first and _mixes_rows(executable) is None
    size = inputs[0].shape[0] if batched else 1
    common = source, {size: executable}, {size: 0.0}, inputs, outputs, batched
    return _model(*common, Dim("rows", 1, size), size, own=size if batched else None)


def _model(
    source: Source,
    executables: dict[int, Executable],
    seconds: Mapping[int, float],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    batched: bool,
    batch: Dim,
    max_rows: int,
    own: int | None = None,
) -> ServedModel:
    """The served model, with specifications from arrays of a run.

    ``own`` is the number of rows of a model of one batch size.
    """
    interface = next(iter(executables.values())).interface

    def specs(names: Sequence[str], arrays: Sequence[np.ndarray]) -> list[Spec]:
        return [
            Spec(name, array.dtype, array.shape[1:] if batched else array.shape, batched, own)
            for name, array in zip(names, arrays, strict=True)
        ]

    taken = specs([each.name for each in interface.inputs], inputs)
    given = specs(interface.output_names or _output_names(interface.outputs, taken), outputs)
    for spec in (*taken, *given):
        if str(spec.dtype) not in DATATYPES:
            raise UnsupportedError(
                f"model {source.name!r}: {spec.name!r} is {spec.dtype}; served are "
                f"{', '.join(DATATYPES)}"
            )
    return ServedModel(source, executables, seconds, taken, given, batch, max_rows)


def _output_names(outputs: Sequence[object], inputs: Sequence[Spec]) -> list[str]:
    """Names for outputs that the network does not name; names of inner values mean nothing."""
    names = ["output"] if len(outputs) == 1 else [f"output{i}" for i in range(len(outputs))]
    return [f"{name}_" if name in {spec.name for spec in inputs} else name for name in names]


def _try(executable: Executable) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Random inputs of an executable, and its outputs for them."""
    inputs = executable.random_inputs()
    return inputs, results_of(executable, inputs)


def _seconds(executables: Mapping[int, Executable]) -> dict[int, float]:
    """The run time of each executable: the least of a few interleaved runs."""

    def run(executable: Executable, inputs: list[np.ndarray]) -> float:
        begin = time.perf_counter()
        results_of(executable, inputs)
        return time.perf_counter() - begin

    runs = {str(n): partial(run, each, each.random_inputs()) for n, each in executables.items()}
    return {int(rows): min(times) for rows, times in interleaved(runs, _RUNS).items()}


def evened(seconds: Mapping[int, float]) -> dict[int, float]:
    """Run times without small differences that a few runs cannot tell.

    An executable that seems a little slower than smaller ones together gets their time, so that
    batches are not split without need.
    """
    times: dict[int, float] = {}
    for rows in sorted(seconds):
        parts = parts_of(rows, times) or ()
        together = sum(times[part.rows] for part in parts)
        is_alike = bool(parts) and together < seconds[rows] <= _ALIKE * together
        times[rows] = together if is_alike else seconds[rows]
    return times


def _mixes_rows(executable: Executable) -> str | None:
    """The reason why requests cannot share a batch, or None if they can.

    The first row's result must not change when the other rows become NaN, or other integers.
    """
    inputs = executable.random_inputs()
    if inputs[0].shape[0] < 2:
        return None
    before = results_of(executable, inputs)
    random = np.random.default_rng(1)
    for array in inputs:
        others = random_array(random, array[1:].shape, array.dtype)
        array[1:] = np.nan if array.dtype.kind == "f" else others
    after = results_of(executable, inputs)
    for name, first, changed in zip(executable.interface.outputs, before, after, strict=True):
        if first[0].tobytes() != changed[0].tobytes():
            return f"the first row of output {name.name!r} depends on the other rows"
    return None
