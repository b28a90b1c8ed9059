"""Computes a batch in parts, by programs for fewer rows.

:func:`parts_of` chooses the programs and their rows by predicted time; :func:`run_in_parts` runs
them on slices of the caller's arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.executable import Executable
from minidnn.runtime.arrays import apart, to_numpy
from minidnn.runtime.program import DeviceProgram

#: Rows for which the best parts are found exactly; for larger batches, the program with the least
#: time a row computes the first rows.
_EXACT = 1024


@dataclass(frozen=True)
class BatchPart:
    """Rows ``begin`` to ``begin + rows - 1`` of a batch; the program for ``rows`` rows computes
    them."""

    begin: int
    rows: int

    @property
    def end(self) -> int:
        """The row after the last one."""
        return self.begin + self.rows


@dataclass(frozen=True)
class RowWise:
    """A network whose rows are independent: which inputs and outputs have rows."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


def parts_of(total: int, seconds: Mapping[int, float]) -> tuple[BatchPart, ...] | None:
    """The parts of a batch that take the least time together; None if all programs are too large.

    ``seconds`` has the time of each program, by its number of rows.  If no sum of these numbers is
    ``total``, the last part begins earlier: it computes some rows a second time, with the same
    results.
    """
    costs = {rows: cost for rows, cost in seconds.items() if rows <= total}
    if not costs:
        return None
    best = min(costs, key=lambda rows: (costs[rows] / rows, -rows))
    whole_parts = max(0, total - _EXACT) // best
    counts = [best] * whole_parts + _least(total - whole_parts * best, costs)
    parts, begin = [], 0
    for rows in sorted(counts, reverse=True):
        parts.append(BatchPart(min(begin, total - rows), rows))
        begin += rows
    return tuple(parts)


def _least(total: int, costs: Mapping[int, float]) -> list[int]:
    """The rows of the programs that compute at least ``total`` rows in the least time, by dynamic
    programming."""
    #: For each number of rows the least seconds, and the rows of the last program, negative so that
    #: the largest of equals counts.
    cheapest: list[tuple[float, int]] = [(0.0, 0)]
    for rows in range(1, total + 1):
        options = ((cheapest[max(0, rows - one)][0] + cost, -one) for one, cost in costs.items())
        cheapest.append(min(options))
    programs, rows_left = [], total
    while rows_left > 0:
        programs.append(-cheapest[rows_left][1])
        rows_left -= programs[-1]
    return programs


def run_in_parts(
    parts: Sequence[BatchPart],
    executables: Sequence[Executable],
    wise: RowWise,
    rows: int,
    given: Sequence[Any],
    out: Any,
) -> Any:
    """Runs each part of a batch of ``rows`` rows; returns the same results as one executable.

    ``executables``: the executable of each part.  ``given``: the inputs in order, checked.
    """
    first = executables[0]
    if isinstance(first.program, DeviceProgram):
        return _on_device(executables, parts, wise, given, out)
    values = first.interface.inputs
    viewed = [to_numpy(f"input {v.name!r}", each) for v, each in zip(values, given, strict=True)]
    arrays = [array for array, _ in viewed]
    shapes = with_rows(rows, [value.shape for value in first.interface.outputs], wise.outputs)
    results = first.outputs_for(out, shapes)
    if out is not None:
        arrays = [apart(array, results) for array in arrays]
    for part, executable in zip(parts, executables, strict=True):
        inputs = _rows(arrays, wise.inputs, part)
        executable(*inputs, out=_rows(results, wise.outputs, part))
    return out if out is not None else first.packed([viewed[0][1](each) for each in results])


def with_rows(
    rows: int, shapes: Sequence[tuple[int, ...]], have_rows: Sequence[bool]
) -> list[tuple[int, ...]]:
    """The shapes for a batch of another number of rows."""
    return [
        (rows, *shape[1:]) if has_rows else shape
        for shape, has_rows in zip(shapes, have_rows, strict=True)
    ]


def without_rows(executable: Executable, wise: RowWise, given: Sequence[Any], out: Any) -> Any:
    """The results for a batch of no rows: an executable for some rows runs on zeros, and its
    results are sliced to none.

    ``given``: the inputs in order, whose shapes are valid except for their number of rows.
    """
    inputs = [
        _zeros(array, value.shape) if has_rows else array
        for value, array, has_rows in zip(
            executable.interface.inputs, given, wise.inputs, strict=True
        )
    ]
    returned = executable(*inputs)
    if isinstance(returned, dict):
        returned = tuple(returned.values())
    several = returned if isinstance(returned, tuple) else (returned,)
    results = _rows(several, wise.outputs, BatchPart(0, 0))
    if out is None:
        return executable.packed(results)
    shapes = [tuple(result.shape) for result in results]
    if isinstance(executable.program, DeviceProgram):
        targets = _targets_on_device(out, shapes)
    else:
        targets = executable.outputs_for(out, shapes)
    for target, result, has_rows in zip(targets, results, wise.outputs, strict=True):
        if not has_rows:
            target[...] = result
    return out


def _zeros(array: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of a shape, in the library, dtype and device of an array."""
    library = type(array).__module__.partition(".")[0]
    if library == "torch":
        return array.new_zeros(shape)
    if hasattr(array, "__array_namespace__"):
        device = {} if library in ("numpy", "cupy") else {"device": array.device}
        return array.__array_namespace__().zeros(shape, dtype=array.dtype, **device)
    return np.zeros(shape, np.asarray(array).dtype)


def _rows(arrays: Sequence[Any], have_rows: Sequence[bool], part: BatchPart) -> list[Any]:
    """The arrays, those with rows sliced to the rows of a part."""
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
    """The results of parts on a device, where arrays and results stay; see :func:`run_in_parts`."""
    arrays = [np.asarray(each) if isinstance(each, (list, tuple)) else each for each in given]
    first = executables[0]
    output_shapes = [value.shape for value in first.interface.outputs]
    shapes = with_rows(parts[-1].end, output_shapes, wise.outputs)
    targets = None if out is None else _targets_on_device(out, shapes)
    pieces: list[list[Any]] = []
    for part, executable in zip(parts, executables, strict=True):
        assert isinstance(executable.program, DeviceProgram)
        part_targets = None if targets is None else _rows(targets, wise.outputs, part)
        pieces.append(list(executable.program.call(_rows(arrays, wise.inputs, part), part_targets)))
    if out is not None:
        return out
    outputs = []
    for number, has_rows in enumerate(wise.outputs):
        results = [piece[number] for piece in pieces]
        outputs.append(_concatenated(results, parts) if has_rows else results[0])
    return first.packed(outputs)


def _targets_on_device(out: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The arrays of ``out``; GraphError unless there is one of each of the results' shapes.

    The program that writes them checks the rest, but sees slices of them.
    """
    targets = list(out) if isinstance(out, (list, tuple)) else [out]
    if len(targets) != len(shapes):
        raise GraphError(f"out gives {len(targets)} arrays; valid are {len(shapes)}")
    for i, (target, shape) in enumerate(zip(targets, shapes, strict=True)):
        if shape_of(target) != shape:
            raise GraphError(
                f"out[{i}] has the shape {list(shape_of(target))}; valid is {list(shape)}"
            )
    return targets


def _concatenated(results: Sequence[Any], parts: Sequence[BatchPart]) -> Any:
    """The results of all parts, concatenated so that each row is there once."""
    kept, end = [], 0
    for result, part in zip(results, parts, strict=True):
        kept.append(result[end - part.begin :])
        end = part.end
    library = type(results[0]).__module__.partition(".")[0]
    if library in ("cupy", "numpy", "torch"):
        return sys.modules[library].concatenate(kept)
    return results[0].__array_namespace__().concat(kept)


def shape_of(array: Any) -> tuple[int, ...]:
    """The shape of an array of any library, or of nested lists."""
    shape = getattr(array, "shape", None)
    if shape is None:
        try:
            shape = np.shape(array)
        except ValueError:  # rows of different lengths, of which the executable tells
            shape = ()
    return tuple(shape)
