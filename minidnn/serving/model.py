"""A model that is ready to run: an executable for each size of a batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.errors import UnsupportedError
from minidnn.executable import Executable
from minidnn.runtime.arrays import random_array
from minidnn.serving.tensors import DATATYPES, Spec


@dataclass(frozen=True)
class Opened:
    """A network that was read once, to be compiled.

    Attributes:
        compile: the executable for so many rows; for None, of the network's own size.
        any_batch: whether it takes a number of rows.
    """

    compile: Callable[[int | None], Executable]
    any_batch: bool


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
        max_rows: of a request and of a batch; 1 for a model that takes no batches.
    """

    def __init__(
        self,
        source: Source,
        executables: dict[int, Executable],
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
    ) -> None:
        self.source = source
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._executables = executables
        self.sizes = sorted(executables)
        self.max_rows = self.sizes[-1]
        #: What batches of each size are gathered in; batches run one after another.
        self._gathered: dict[int, list[np.ndarray]] = {}

    def run(
        self, requests: Sequence[Sequence[np.ndarray]], rows: Sequence[int]
    ) -> list[list[np.ndarray]]:
        """The outputs of each request, of ``rows`` rows each: all are computed in one batch,
        which is padded up to the next size there is."""
        total = sum(rows)
        size = self.sizes[bisect_left(self.sizes, total)]
        if len(requests) == 1 and total == size:
            inputs = list(requests[0])
        else:
            inputs = self._gather(size, requests, rows)
        results = results_of(self._executables[size], inputs)
        if len(requests) == 1 and total == size:
            return [results]
        found, begin = [], 0
        for count in rows:
            found.append([result[begin : begin + count] for result in results])
            begin += count
        return found

    def _gather(
        self, size: int, requests: Sequence[Sequence[np.ndarray]], rows: Sequence[int]
    ) -> list[np.ndarray]:
        if size not in self._gathered:
            self._gathered[size] = [
                np.zeros((size, *spec.shape), spec.dtype) for spec in self.inputs
            ]
        gathered, begin = self._gathered[size], 0
        for request, count in zip(requests, rows, strict=True):
            for target, array in zip(gathered, request, strict=True):
                target[begin : begin + count] = array
            begin += count
        for target in gathered:
            target[begin:] = 0  # rows of somebody else's are not computed again
        return gathered


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
    if not opened.any_batch:
        return _of_own_size(source, opened.compile(None))
    sizes = sizes_of(max_batch)
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
    return _model(source, executables, *tried[sizes[-1]], batched=True)


def sizes_of(most: int) -> list[int]:
    """1, 2, 4 and so on, and the largest."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def _of_own_size(source: Source, executable: Executable) -> ServedModel:
    """A model of one size: if rows along a first axis that all share are independent, it takes any
    number of them up to that, else whole requests."""
    inputs, outputs = _try(executable)
    first = {array.shape[:1] for array in (*inputs, *outputs)}
    batched = len(first) == 1 and () not in first and _mixes_rows(executable) is None
    size = inputs[0].shape[0] if batched else 1
    return _model(source, {size: executable}, inputs, outputs, batched)


def _model(
    source: Source,
    executables: dict[int, Executable],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    batched: bool,
) -> ServedModel:
    interface = next(iter(executables.values())).interface

    def specs(names: Sequence[str], arrays: Sequence[np.ndarray]) -> list[Spec]:
        return [
            Spec(name, array.dtype, array.shape[1:] if batched else array.shape, batched)
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
    return ServedModel(source, executables, taken, given)


def _output_names(outputs: Sequence[object], inputs: Sequence[Spec]) -> list[str]:
    """Names of outputs that the network does not name: those of values within mean nothing."""
    names = ["output"] if len(outputs) == 1 else [f"output{i}" for i in range(len(outputs))]
    return [f"{name}_" if name in {spec.name for spec in inputs} else name for name in names]


def _try(executable: Executable) -> tuple[list[np.ndarray], list[np.ndarray]]:
    inputs = executable.random_inputs()
    return inputs, results_of(executable, inputs)


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
