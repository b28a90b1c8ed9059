"""Several runs of a launch table in one CUDA graph, each on inputs and outputs of its own.

Runs use the same memory for values, one after the other, as they would if each were launched by
itself, so their results have the same bits.  Only inputs and outputs have memory for each run: all
inputs are copied there before the launch, and all outputs back after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...gpu import cupy
from ...runtime.operand import resolved
from .arrays import DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE, ArraySlot, CallerArray
from .functions import Run
from .memory import aligned, allocated
from .replay import Replay
from .table import CudaTable

_SMALL = 4096
"""The most bytes of an input for which host arrays of all runs are gathered into a single copy."""


def bytes_beside(table: CudaTable, count: int) -> int:
    """The bytes of memory for the inputs and outputs of so many runs."""
    return count * sum(map(aligned, (*table.inputs, *table.outputs)))


class Repeated:
    """So many runs of a table as one graph.  All kernels have run before, so capture loads nothing.

    Args:
        values: the address of the memory for values, which nobody else uses during a launch.
        states: the address of each state.
        constants: the address at which constants begin.
    """

    def __init__(
        self, table: CudaTable, count: int, values: int, states: Sequence[int], constants: int
    ) -> None:
        cuda = cupy().cuda
        self.bytes = bytes_beside(table, count)
        self._memory = allocated(self.bytes, f"inputs and outputs of {count} runs")
        self._count = count
        self._runtime = cuda.runtime
        #: For each input and output, the address for the first run, and the bytes between runs.
        self._ends: list[tuple[int, int]] = []
        address = int(self._memory.ptr)
        for size in (*table.inputs, *table.outputs):
            self._ends.append((address, aligned(size)))
            address += count * aligned(size)
        self._inputs = table.inputs
        #: Host arrays gathered for the last launch, which stay alive until the next one.
        self._gathered: list[np.ndarray] = []
        self._stream = cuda.Stream(non_blocking=True)
        #: Calls of libraries have to live as long as the graph.
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

    def _copy(self, addresses: Sequence[int], size: int) -> Run:
        """Returns what copies an output that no kernel writes."""
        to, source = addresses
        return lambda: self._send(to, source, size, DEVICE_TO_DEVICE, self._stream.ptr)

    def _enqueue(self) -> None:
        for run in self._runs:
            run()

    def launch(self, calls: Sequence[Sequence[CallerArray]], stream: int) -> np.ndarray:
        """Starts all runs on a stream.  Returns a buffer for :meth:`results`, which has the bytes
        of all outputs once the stream is done; arrays of ``calls`` must stay alive until then."""
        self._gathered.clear()
        inputs = zip(self._inputs, self._ends, strict=False)
        for index, (size, (begin, step)) in enumerate(inputs):
            arrays = [call[index] for call in calls]
            if size <= _SMALL and all(array.kind == HOST_TO_DEVICE for array in arrays):
                rows = np.zeros((len(arrays), step), np.uint8)
                for row, array in zip(rows, arrays, strict=True):
                    row[:size] = array.kept.reshape(-1).view(np.uint8)
                self._send(begin, rows.ctypes.data, rows.nbytes, HOST_TO_DEVICE, stream)
                self._gathered.append(rows)
                continue
            for number, array in enumerate(arrays):
                self._send(begin + number * step, array.pointer, size, array.kind, stream)
        self._runtime.graphLaunch(self._replay.executable, stream)
        ends = self._ends[len(self._inputs) :]
        outputs = np.empty(self._count * sum(step for _, step in ends), np.uint8)
        if outputs.size:
            self._send(outputs.ctypes.data, ends[0][0], outputs.nbytes, DEVICE_TO_HOST, stream)
        return outputs

    def _send(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        self._runtime.memcpyAsync(to, source, size, kind, stream)

    def results(self, found: np.ndarray, slots: Sequence[ArraySlot]) -> list[np.ndarray]:
        """The outputs of all runs, from the buffer of :meth:`launch`, as arrays whose first axis
        counts runs; bfloat16 as its bits."""
        arrays, at = [], 0
        for slot, (_, step) in zip(slots, self._ends[len(self._inputs) :], strict=True):
            rows = found[at : at + self._count * step].reshape(self._count, step)[:, : slot.bytes]
            flat: Any = np.ascontiguousarray(rows).reshape(-1).view(slot.stored)
            arrays.append(flat.reshape(self._count, *slot.shape))
            at += self._count * step
        return arrays
