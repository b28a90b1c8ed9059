"""Several runs of a table in one CUDA graph, each on inputs and outputs of its own.

Runs work in the same memory one after the other, as they would if each were launched by itself, so
their results have the same bits.  Only inputs and outputs lie side by side: all inputs are copied
there in front of the launch, and all outputs back behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...gpu import cupy
from ...runtime.operand import resolved
from .arrays import DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE, ArraySlot, Given
from .functions import Run
from .memory import aligned, allocated
from .replay import Replay
from .table import CudaTable

_SMALL = 4096
"""Bytes of an input up to which those of all runs are gathered on the host, and copied at once."""


def bytes_beside(table: CudaTable, count: int) -> int:
    """How many bytes the inputs and outputs of so many runs take."""
    return count * sum(map(aligned, (*table.inputs, *table.outputs)))


class Repeated:
    """So many runs of a table as one graph.  Kernels were run before: nothing is loaded here.

    Args:
        values: where the memory begins in which runs keep values, which nobody else uses meanwhile.
        states: where each lies.
        constants: where they begin.
    """

    def __init__(
        self, table: CudaTable, count: int, values: int, states: Sequence[int], constants: int
    ) -> None:
        cuda = cupy().cuda
        self.bytes = bytes_beside(table, count)
        self._memory = allocated(self.bytes, f"inputs and outputs of {count} runs")
        self._count = count
        self._runtime = cuda.runtime
        #: Of each input and output: where that of the first run lies, and how far the next.
        self._ends: list[tuple[int, int]] = []
        at = int(self._memory.ptr)
        for size in (*table.inputs, *table.outputs):
            self._ends.append((at, aligned(size)))
            at += count * aligned(size)
        self._inputs = table.inputs
        #: What was gathered for the last launch: it stays until the next one.
        self._gathered: list[np.ndarray] = []
        self._stream = cuda.Stream(non_blocking=True)
        #: Libraries' calls have to stay as long as the graph.
        self._runs: list[Run] = []
        for number in range(count):
            ends = [begin + number * step for begin, step in self._ends]
            bases = (values, *ends, *states, constants)
            self._runs += [row.bind(bases) for rows in table.tasks for row in rows]
            self._runs += [
                self._copy(resolved((to, source), bases), size) for to, source, size in table.copies
            ]
        with self._stream:
            self._replay = Replay(self._stream, self._enqueue)
        cuda.runtime.graphUpload(self._replay.executable, self._stream.ptr)
        self._stream.synchronize()

    def _copy(self, places: Sequence[int], size: int) -> Run:
        """Copies an output that no kernel writes."""
        to, source = places
        return lambda: self._send(to, source, size, DEVICE_TO_DEVICE, self._stream.ptr)

    def _enqueue(self) -> None:
        for run in self._runs:
            run()

    def launch(self, calls: Sequence[Sequence[Given]], stream: int) -> np.ndarray:
        """Starts all runs on a stream.  What it returns has the bytes of all outputs, for
        :meth:`results`, once the stream has come so far; what is given must stay until then."""
        self._gathered.clear()
        inputs = zip(self._inputs, self._ends, strict=False)
        for place, (size, (begin, step)) in enumerate(inputs):
            column = [call[place] for call in calls]
            if size <= _SMALL and all(one.kind == HOST_TO_DEVICE for one in column):
                rows = np.zeros((len(column), step), np.uint8)
                for row, one in zip(rows, column, strict=True):
                    row[:size] = one.kept.reshape(-1).view(np.uint8)
                self._send(begin, rows.ctypes.data, rows.nbytes, HOST_TO_DEVICE, stream)
                self._gathered.append(rows)
                continue
            for number, one in enumerate(column):
                self._send(begin + number * step, one.pointer, size, one.kind, stream)
        self._runtime.graphLaunch(self._replay.executable, stream)
        ends = self._ends[len(self._inputs) :]
        found = np.empty(self._count * sum(step for _, step in ends), np.uint8)
        if found.size:
            self._send(found.ctypes.data, ends[0][0], found.nbytes, DEVICE_TO_HOST, stream)
        return found

    def _send(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        self._runtime.memcpyAsync(to, source, size, kind, stream)

    def results(self, found: np.ndarray, slots: Sequence[ArraySlot]) -> list[np.ndarray]:
        """The outputs of all runs in arrays whose first axis is that of the runs, bfloat16 as its
        bits."""
        arrays, at = [], 0
        for slot, (_, step) in zip(slots, self._ends[len(self._inputs) :], strict=True):
            rows = found[at : at + self._count * step].reshape(self._count, step)[:, : slot.bytes]
            flat: Any = np.ascontiguousarray(rows).reshape(-1).view(slot.stored)
            arrays.append(flat.reshape(self._count, *slot.shape))
            at += self._count * step
        return arrays
