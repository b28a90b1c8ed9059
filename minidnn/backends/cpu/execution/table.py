"""The table of regions that a network becomes, and running it; it knows no graph."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from .buffers import AlignedMemory, Array
from .native import runner
from .program import BoundKernel, Group, NativeProgram, shared_pool


@dataclass(frozen=True)
class Table:
    """Regions whose slots are first the memory of a run, then inputs, outputs, states, constants.

    Attributes:
        memory: of each slot of a run's own, bytes for all threads and bytes for each of them.
        sources: for each output the input, output or state (they come in this order), or the
            constant, that it is a copy of; None if kernels write it.
        scratch_bytes: of each thread.
    """

    regions: tuple[BoundKernel | Group, ...]
    memory: tuple[tuple[int, int], ...]
    inputs: int
    outputs: int
    states: int
    sources: tuple[int | Array | None, ...]
    scratch_bytes: int

    @property
    def constants(self) -> int:
        """The slot of the constants."""
        return len(self.memory) + self.inputs + self.outputs + self.states


class TableProgram:
    """A table that is run; several threads may do so at once.

    Args:
        threads: that run it.
        constants: the address of the constants' slot.
        guarded: as for :class:`NativeProgram`.
    """

    def __init__(
        self, table: Table, threads: int, constants: int = 0, guarded: bool = False
    ) -> None:
        self.table = table
        self.threads = threads
        self.guarded = guarded
        self._constants_at = constants
        self._sizes = [whole + threads * own for whole, own in table.memory]
        self._program = NativeProgram(
            table.regions, table.constants + 1, table.scratch_bytes, shared_pool(threads), guarded
        )
        self._idle: collections.deque[list[AlignedMemory]] = collections.deque()
        self._lock: AbstractContextManager[Any] = nullcontext()
        self._states: list[Array] = []
        self._addresses: list[int] = []

    def use_states(self, states: list[Array], lock: AbstractContextManager[Any]) -> None:
        """From now on reads and writes these arrays, and holds the lock in a run."""
        self._states, self._lock = states, lock
        self._addresses = [array.ctypes.data for array in states]

    @property
    def run_bytes(self) -> int:
        """What a run needs: arenas, workspace, and the threads' scratch."""
        return sum(self._sizes) + self.threads * self.table.scratch_bytes

    def release_memory(self) -> None:
        """Gives what was freed since back to the system, as far as its allocator can."""
        runner().md_memory_release()

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Computes the outputs; several threads may call at once."""
        self._run(inputs, outputs, self._program.run)

    @property
    def takes_addresses(self) -> bool:
        """Whether :meth:`run_at` can be used: kernels write all outputs, and none is guarded."""
        return not self.guarded and all(source is None for source in self.table.sources)

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Computes from and to contiguous arrays of the right types at these addresses."""
        with self._lock:
            self._run_on([*inputs, *outputs], self._program.run)

    def use_threads_of(self, team: int) -> None:
        """From now on runs with the threads of an OpenMP library, see :class:`Pool`."""
        self._program.pool = shared_pool(self.threads, team)

    def rest(self) -> None:
        """Has the threads sleep until the next run: something else needs the cores."""
        self._program.pool.rest()

    def _run(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        run: Callable[[list[int]], Any],
    ) -> None:
        with self._lock:
            self._run_on([array.ctypes.data for array in (*inputs, *outputs)], run)
            self._finish(inputs, outputs)

    def _run_on(self, addresses: list[int], run: Callable[[list[int]], Any]) -> None:
        """Runs on inputs and outputs at these addresses, with buffers that no other run has."""
        try:
            memory = self._idle.pop()
        except IndexError:
            self.release_memory()  # perhaps of a network that was dropped once compiled
            memory = [AlignedMemory(size) for size in self._sizes]
        try:
            own = [buffer.address for buffer in memory]
            run([*own, *addresses, *self._addresses, self._constants_at])
        finally:
            self._idle.append(memory)

    def _finish(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Copies outputs that no kernel writes: inputs, constants, states that stay as they are,
        and values given twice."""
        arrays = (*inputs, *outputs, *self._states)
        for source, array in zip(self.table.sources, outputs, strict=True):
            if source is not None:
                given = arrays[source] if isinstance(source, int) else source
                array[...] = np.reshape(given, array.shape)
