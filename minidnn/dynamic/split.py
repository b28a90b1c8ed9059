"""A batch in parts: which programs compute which of its rows, which are read from and written to
where they lie.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.executable import Executable
from minidnn.runtime.arrays import apart, to_numpy
from minidnn.runtime.program import DeviceProgram

#: Rows that are shared out exactly; of more, the cheapest program computes those in front.
_EXACT = 1024


@dataclass(frozen=True)
class BatchPart:
    """Rows ``begin`` to ``begin + rows - 1``, computed by the program for so many."""

    begin: int
    rows: int

    @property
    def end(self) -> int:
        return self.begin + self.rows


@dataclass(frozen=True)
class RowWise:
    """A network whose rows are independent: which inputs and outputs have rows."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


def parts_of(total: int, seconds: Mapping[int, float]) -> tuple[BatchPart, ...] | None:
    """The parts of a batch that take the least time together; None if all programs are too large.

    Programs compute as many rows as they were made for, in ``seconds``.  Where these do not add up,
    the last part begins earlier, and its first rows are computed twice, with one result.
    """
    costs = {rows: cost for rows, cost in seconds.items() if rows <= total}
    if not costs:
        return None
    best = min(costs, key=lambda rows: (costs[rows] / rows, -rows))
    ahead = max(0, total - _EXACT) // best
    counts = [best] * ahead + _least(total - ahead * best, costs)
    found, begin = [], 0
    for rows in sorted(counts, reverse=True):
        found.append(BatchPart(min(begin, total - rows), rows))
        begin += rows
    return tuple(found)


def _least(total: int, costs: Mapping[int, float]) -> list[int]:
    """The programs that compute at least so many rows in the least time."""
    #: For each number of rows the seconds, and the rows of one program, of several the largest.
    cheapest: list[tuple[float, int]] = [(0.0, 0)]
    for rows in range(1, total + 1):
        ways = ((cheapest[max(0, rows - one)][0] + cost, -one) for one, cost in costs.items())
        cheapest.append(min(ways))
    found, left = [], total
    while left > 0:
        found.append(-cheapest[left][1])
        left -= found[-1]
    return found


def run_in_parts(
    parts: Sequence[BatchPart],
    executables: Sequence[Executable],
    wise: RowWise,
    rows: int,
    given: Sequence[Any],
    out: Any,
) -> Any:
    """The results for a batch of ``rows`` rows, as one executable for all of them gives them.

    ``executables``: what computes each part.  ``given``: the inputs in order; their shapes fit.
    """
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


def with_rows(
    rows: int, shapes: Sequence[tuple[int, ...]], have_rows: Sequence[bool]
) -> list[tuple[int, ...]]:
    """Shapes of a batch of another number of rows."""
    return [
        (rows, *shape[1:]) if has_rows else shape
        for shape, has_rows in zip(shapes, have_rows, strict=True)
    ]


def without_rows(executable: Executable, wise: RowWise, given: Sequence[Any], out: Any) -> Any:
    """The results for a batch of no rows: those of an executable for some, without any.

    ``given``: the inputs in order; their shapes fit but for their rows.
    """
    some = [
        _zeros(array, value.shape) if has_rows else array
        for value, array, has_rows in zip(
            executable.interface.inputs, given, wise.inputs, strict=True
        )
    ]
    found = executable(*some)
    several = isinstance(found, (tuple, dict))
    results = list(found.values() if isinstance(found, dict) else found) if several else [found]
    results = _rows(results, wise.outputs, BatchPart(0, 0))
    if out is None:
        return executable.packed(results)
    targets = list(out) if isinstance(out, (list, tuple)) else [out]
    if not isinstance(executable.program, DeviceProgram):
        targets = executable.outputs_for(out, [result.shape for result in results])
    for target, result, has_rows in zip(targets, results, wise.outputs, strict=True):
        if not has_rows:
            target[...] = result
    return out


def _zeros(array: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of another shape, of an array's library, dtype and device."""
    library = type(array).__module__.partition(".")[0]
    if library == "torch":
        return array.new_zeros(shape)
    if hasattr(array, "__array_namespace__"):
        more = {} if library in ("numpy", "cupy") else {"device": array.device}
        return array.__array_namespace__().zeros(shape, dtype=array.dtype, **more)
    return np.zeros(shape, np.asarray(array).dtype)


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


def shape_of(array: Any) -> tuple[int, ...]:
    """The shape of an array of any library, or of lists."""
    shape = getattr(array, "shape", None)
    if shape is None:
        try:
            shape = np.shape(array)
        except ValueError:  # rows of different lengths, of which the executable tells
            shape = ()
    return tuple(shape)
