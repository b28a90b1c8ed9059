"""The executable that is loaded from a file for batches of any size in a range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minidnn.dynamic.dim import Dim, Template, bound, check_inputs, sizes_of, written_inputs
from minidnn.dynamic.split import (
    BatchPart,
    RowWise,
    parts_of,
    run_in_parts,
    shape_of,
    with_rows,
    without_rows,
)
from minidnn.errors import GraphError, UnsupportedError
from minidnn.executable import Executable

__all__ = ["BatchExecutable"]

_REMEMBERED = 4096
"""Sizes of batches whose parts are cached."""


class BatchExecutable:
    """A compiled network for all batches in a range, as :func:`minidnn.load` gives it of a file
    that :meth:`minidnn.dynamic.executable.DynamicExecutable.save` wrote.

    It is called like an :class:`minidnn.executable.Executable`.  It has programs for few batches,
    and computes others in parts, with the same results as of one program for all rows.

    Args:
        batch: the named size, with its range.
        wise: which inputs and outputs have rows.
        programs: executables by the rows that they compute.
        seconds: what each of them takes.

    Attributes:
        dims: the batch alone.
        templates: the shapes of the inputs, with the batch in it.

    >>> exe = md.compile(net, (md.Dim("batch", 1, 4), 3, 32, 32), device="cpu")
    >>> exe.save("any.mdx")
    >>> y = md.load("any.mdx")(x)
    """

    def __init__(
        self,
        batch: Dim,
        wise: RowWise,
        programs: Mapping[int, Executable],
        seconds: Mapping[int, float],
    ) -> None:
        self.dims = (batch,)
        self.programs = dict(programs)
        self._wise = wise
        self._seconds = dict(seconds)
        self._parts: dict[int, tuple[BatchPart, ...]] = {}
        first = self._first
        self.name = first.interface.name
        self.inputs = first.interface.inputs
        self.output_names = first.interface.output_names
        self.device, self.precision = first.device, first.precision
        self.templates: tuple[Template, ...] = tuple(
            (batch, *value.shape[1:]) if has_rows else value.shape
            for value, has_rows in zip(self.inputs, wise.inputs, strict=True)
        )

    def __repr__(self) -> str:
        inputs = written_inputs(self.inputs, self.templates)
        return (
            f"<BatchExecutable of {self.name} on {self.device} in {self.precision}: {inputs}; "
            f"{self.dims[0]}, programs for {', '.join(map(str, self.programs))}>"
        )

    def __call__(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Computes the outputs for a batch of any size in the range, or of no rows.

        GraphError if something does not fit.
        """
        (batch,) = self.dims
        given = self._first.ordered(inputs, named)
        shapes = [shape_of(array) for array in given]
        have_rows = self._wise.inputs
        if all(shape[:1] == (0,) for shape, has in zip(shapes, have_rows, strict=True) if has):
            shapes_of_least = with_rows(batch.least, shapes, have_rows)
            sizes_of(self.inputs, self.templates, shapes_of_least)
            return without_rows(self._first, self._wise, given, out)
        rows = sizes_of(self.inputs, self.templates, shapes)[batch.name]
        if rows in self.programs:
            return self.programs[rows](*given, out=out)
        parts = self._parts_of(rows)
        executables = [self.programs[part.rows] for part in parts]
        return run_in_parts(parts, executables, self._wise, rows, given, out)

    def at(self, **sizes: int) -> Executable:
        """The executable for a batch that the file has a program for.

        GraphError if it has none.
        """
        (batch,) = self.dims
        rows = check_inputs(self.dims, sizes, "at")[batch.name]
        if rows not in self.programs:
            raise GraphError(
                f"at: the file has no program for {batch.name}={rows}, which is computed in parts; "
                f"valid are {', '.join(map(str, self.programs))}"
            )
        return self.programs[rows]

    @property
    def source(self) -> Any:
        """Raises UnsupportedError, as a file has no graph."""
        raise UnsupportedError(
            f"{self!r} was loaded from a file, which keeps what is called and run; what save_graph "
            "and save_onnx write is had by compiling the network"
        )

    def save(self, path: Any, *, preparation: Any = None) -> None:
        """Raises UnsupportedError, as the file itself can be copied."""
        raise UnsupportedError(f"{self!r} was loaded from a file, which can be copied")

    def random_inputs(self, **sizes: int) -> list[np.ndarray]:
        """Random inputs of a batch, always the same; by default of the least batch."""
        (batch,) = self.dims
        rows = check_inputs(self.dims, {batch.name: batch.least} | sizes, "random_inputs")
        return self._first.random_arrays(list(bound(self.templates, rows)))

    def explain(self) -> str:
        """How batches are computed, and the explanation of the program for the most rows."""
        largest = self.programs[max(self.programs)]
        return "\n".join([repr(self)[1:-1], "", largest.explain()])

    @property
    def _first(self) -> Executable:
        return self.programs[self.dims[0].least]

    def _parts_of(self, rows: int) -> tuple[BatchPart, ...]:
        """The parts of a batch, from the cache."""
        parts = self._parts.get(rows)
        if parts is None:
            parts = parts_of(rows, self._seconds)
            assert parts is not None, "the least batch has a program"
            if len(self._parts) >= _REMEMBERED:
                self._parts.clear()
            self._parts[rows] = parts
        return parts
