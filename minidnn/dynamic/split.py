"""Running a batch in parts: each part's rows are read from and written to where they lie."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from minidnn.dynamic.batches import BatchSplit
from minidnn.dynamic.parts import BatchPart
from minidnn.dynamic.rows import RowWise
from minidnn.executable import Executable
from minidnn.runtime.arrays import apart, to_numpy
from minidnn.runtime.program import DeviceProgram


def run_in_parts(split: BatchSplit, rows: int, given: Sequence[Any], out: Any) -> Any:
    """The results for a batch of ``rows`` rows, as one executable for all of them gives them.

    ``given``: the inputs in order; their shapes fit.
    """
    parts, wise = split.parts, split.wise
    executables = [program.executable for program in split.programs]
    first = executables[0]
    if isinstance(first.program, DeviceProgram):
        return _on_device(executables, parts, wise, given, out)
    values = first.interface.inputs
    viewed = [to_numpy(f"input {v.name!r}", each) for v, each in zip(values, given, strict=True)]
    arrays = [array for array, _ in viewed]
    shapes = [
        (rows, *value.shape[1:]) if has_rows else value.shape
        for value, has_rows in zip(first.interface.outputs, wise.outputs, strict=True)
    ]
    results = first.outputs_for(out, shapes)
    if out is not None:
        arrays = [apart(array, results) for array in arrays]
    for part, executable in zip(parts, executables, strict=True):
        inputs = _rows(arrays, wise.inputs, part)
        executable(*inputs, out=_rows(results, wise.outputs, part))
    return out if out is not None else first.packed([viewed[0][1](each) for each in results])


def _rows(arrays: Sequence[Any], have_rows: Sequence[bool], part: BatchPart) -> list[Any]:
    """The part's rows of arrays that have any, and the others."""
    return [
        array[part.begin : part.end] if has_rows else array
        for array, has_rows in zip(arrays, have_rows, strict=True)
    ]


def _on_device(
    executables: Sequence[Executable],
    parts: Sequence[BatchPart],
    wise: RowWise,
    given: Sequence[Any],
    out: Any,
) -> Any:
    arrays = [np.asarray(each) if isinstance(each, (list, tuple)) else each for each in given]
    first = executables[0]
    targets = None if out is None else list(out) if isinstance(out, (list, tuple)) else [out]
    pieces: list[list[Any]] = []
    for part, executable in zip(parts, executables, strict=True):
        assert isinstance(executable.program, DeviceProgram)
        into = None if targets is None else _rows(targets, wise.outputs, part)
        pieces.append(list(executable.program.call(_rows(arrays, wise.inputs, part), into)))
    if out is not None:
        return out
    found = []
    for number, has_rows in enumerate(wise.outputs):
        results = [piece[number] for piece in pieces]
        found.append(_joined(results, parts) if has_rows else results[0])
    return first.packed(found)


def _joined(results: Sequence[Any], parts: Sequence[BatchPart]) -> Any:
    """One array of the rows of several, each row once."""
    kept, end = [], 0
    for result, part in zip(results, parts, strict=True):
        kept.append(result[end - part.begin :])
        end = part.end
    library = type(results[0]).__module__.partition(".")[0]
    if library in ("cupy", "numpy", "torch"):
        return sys.modules[library].concatenate(kept)
    return results[0].__array_namespace__().concat(kept)
