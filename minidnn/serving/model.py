"""A model that is ready to run: an executable for each size of a batch."""

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
from minidnn.executable import Executable
from minidnn.measure import interleaved
from minidnn.preparation import Preparation, check_takes
from minidnn.runtime.arrays import random_array
from minidnn.serving.tensors import DATATYPES, Spec

_RUNS = 3
"""By how many runs executables of several sizes are compared."""

_ALIKE = 1.15
"""By what factor a few runs on a busy machine may differ, though both ways are as fast."""


@dataclass(frozen=True)
class Opened:
    """A network that was read once, to be compiled.

    Attributes:
        compile: the executable for so many rows; for None, of the network's own size.
        any_batch: whether it takes a number of rows.
        batch: of how many rows; None for any number.
        sizes: of how many rows there are executables already; None if any can be compiled.
        preparation: how pictures are prepared for it; None if that is not known.
    """

    compile: Callable[[int | None], Executable]
    any_batch: bool
    preparation: Preparation | None = None
    batch: Dim | None = None
    sizes: Sequence[int] | None = None


@dataclass(frozen=True)
class Source:
    """Where a version of a model comes from; ``open`` reads it, each time anew."""

    name: str
    version: int
    platform: str
    open: Callable[[], Opened]


class ServedModel:
    """The executables of a model, and what it takes and gives.

    Attributes:
        batch: of the rows of a request; 1 for a model that takes no batches.
        max_rows: of a batch that several requests share; a request of more has one of its own.
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
        """``seconds``: what the executable for so many rows takes."""
        self.source = source
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._executables = executables
        self._seconds = seconds
        self.sizes = sorted(executables)
        self.batch = batch
        self.max_rows = max_rows
        #: How batches of each number of rows are computed.
        self._parts: dict[int, tuple[BatchPart, ...]] = {}
        #: What batches are gathered in; they run one after another.
        self._gathered: list[np.ndarray] = []

    def run(
        self, requests: Sequence[Sequence[np.ndarray]], rows: Sequence[int]
    ) -> list[list[np.ndarray]]:
        """The outputs of each request, of ``rows`` rows each: all are computed in one batch."""
        total = sum(rows)
        parts = self.parts_of(total)
        is_whole = len(requests) == 1 and max(part.end for part in parts) == total
        inputs = requests[0] if is_whole else self._gather(parts, requests, rows)
        results = self._compute(parts, inputs)
        if is_whole:
            return [results]
        found, begin = [], 0
        for count in rows:
            found.append([result[begin : begin + count] for result in results])
            begin += count
        return found

    def parts_of(self, total: int) -> tuple[BatchPart, ...]:
        """How a batch of so many rows is computed: in parts, or padded up to the next size there
        is, whichever takes less time."""
        if total not in self._parts:
            found = parts_of(total, self._seconds)
            split = sum(self._seconds[part.rows] for part in found or ())
            larger = self.sizes[bisect_left(self.sizes, total) :][:1]
            if larger and (found is None or self._seconds[larger[0]] <= split):
                found = (BatchPart(0, larger[0]),)
            assert found is not None, "rows are in range"
            self._parts[total] = found
        return self._parts[total]

    def _compute(
        self, parts: Sequence[BatchPart], inputs: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        pieces = [
            results_of(
                self._executables[part.rows], [array[part.begin : part.end] for array in inputs]
            )
            for part in parts
        ]
        if len(pieces) == 1:
            return pieces[0]
        rows = max(part.end for part in parts)
        found = [np.empty((rows, *each.shape[1:]), each.dtype) for each in pieces[0]]
        for part, piece in zip(parts, pieces, strict=True):
            for result, each in zip(found, piece, strict=True):
                result[part.begin : part.end] = each
        return found

    def _gather(
        self,
        parts: Sequence[BatchPart],
        requests: Sequence[Sequence[np.ndarray]],
        rows: Sequence[int],
    ) -> list[np.ndarray]:
        total, computed = sum(rows), max(part.end for part in parts)
        if not self._gathered or self._gathered[0].shape[0] < computed:
            shapes = [(max(computed, self.max_rows), *spec.shape) for spec in self.inputs]
            self._gathered = [
                np.zeros(shape, spec.dtype) for shape, spec in zip(shapes, self.inputs, strict=True)
            ]
        begin = 0
        for request, count in zip(requests, rows, strict=True):
            for target, array in zip(self._gathered, request, strict=True):
                target[begin : begin + count] = array
            begin += count
        for target in self._gathered:
            target[total:] = 0  # rows of somebody else's are not computed again
        return self._gathered


def results_of(executable: Executable, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs in their order."""
    given = executable(*inputs)
    if isinstance(given, dict):
        given = tuple(given.values())
    return [np.asarray(each) for each in (given if isinstance(given, tuple) else (given,))]


def load(source: Source, max_batch: int) -> ServedModel:
    """Reads, compiles and tries a model.

    Raises what reading and compiling raise, and UnsupportedError for one that takes any batch, but
    whose rows are not independent of each other.
    """
    opened = source.open()
    model = _loaded(source, opened, max_batch)
    taken = [(None, *each.shape) if each.batched else each.shape for each in model.inputs]
    check_takes(opened.preparation, source.name, taken)
    model.preparation = opened.preparation
    return model


def _loaded(source: Source, opened: Opened, max_batch: int) -> ServedModel:
    if not opened.any_batch:
        return _of_own_size(source, opened.compile(None))
    batch = opened.batch or Dim("rows", 1, max_batch)
    together = batch.up_to(max_batch)
    sizes = opened.sizes or sizes_of(together, batch.least)
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
    given = source, executables, seconds, *tried[sizes[-1]]
    return _model(*given, batched=True, batch=batch, max_rows=together)


def sizes_of(most: int, least: int = 1) -> list[int]:
    """The least, its doubles, and the largest."""
    found = [least]
    while 2 * found[-1] < most:
        found.append(2 * found[-1])
    return found if found[-1] == most else [*found, most]


def _of_own_size(source: Source, executable: Executable) -> ServedModel:
    """A model of one size: if rows along a first axis that all share are independent, it takes any
    number of them up to that, else whole requests."""
    inputs, outputs = _try(executable)
    first = {array.shape[:1] for array in (*inputs, *outputs)}
    batched = len(first) == 1 and () not in first and _mixes_rows(executable) is None
    size = inputs[0].shape[0] if batched else 1
    given = source, {size: executable}, {size: 0.0}, inputs, outputs, batched
    return _model(*given, Dim("rows", 1, size), size, own=size if batched else None)


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
    """``own``: the number of rows, for a model that has one."""
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
    """Names of outputs that the network does not name: those of values within mean nothing."""
    names = ["output"] if len(outputs) == 1 else [f"output{i}" for i in range(len(outputs))]
    return [f"{name}_" if name in {spec.name for spec in inputs} else name for name in names]


def _try(executable: Executable) -> tuple[list[np.ndarray], list[np.ndarray]]:
    inputs = executable.random_inputs()
    return inputs, results_of(executable, inputs)


def _seconds(executables: Mapping[int, Executable]) -> dict[int, float]:
    """What a run of each takes: the least of a few, in turn."""

    def run(executable: Executable, inputs: list[np.ndarray]) -> float:
        begin = time.perf_counter()
        results_of(executable, inputs)
        return time.perf_counter() - begin

    takes = {str(n): partial(run, each, each.random_inputs()) for n, each in executables.items()}
    return {int(rows): min(found) for rows, found in interleaved(takes, _RUNS).items()}


def evened(seconds: Mapping[int, float]) -> dict[int, float]:
    """The same, where an executable that seems a little slower than smaller ones together takes as
    long as these: what a few runs show is not exact, and batches are better whole."""
    found: dict[int, float] = {}
    for rows in sorted(seconds):
        parts = parts_of(rows, found) or ()
        apart = sum(found[part.rows] for part in parts)
        alike = bool(parts) and apart < seconds[rows] <= _ALIKE * apart
        found[rows] = apart if alike else seconds[rows]
    return found


def _mixes_rows(executable: Executable) -> str | None:
    """Why rows cannot be others' in one batch: the result of the first is another when the rest
    are NaN, or other integers.  None if they can."""
    inputs = executable.random_inputs()
    if inputs[0].shape[0] < 2:
        return None
    before = results_of(executable, inputs)
    random = np.random.default_rng(1)
    for array in inputs:
        others = random_array(random, array[1:].shape, array.dtype)
        array[1:] = np.nan if array.dtype.kind == "f" else others
    after = results_of(executable, inputs)
    for name, one, other in zip(executable.interface.outputs, before, after, strict=True):
        if one[0].tobytes() != other[0].tobytes():
            return f"the first row of output {name.name!r} depends on the other rows"
    return None
