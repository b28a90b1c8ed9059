"""A compiled network as a table of regions, and the programs that run it with one native call.

A region is one launch of a kernel: its operands, and tasks that a pool of threads shares.  Regions
run one after another.  A region may call back into Python: sums over ranks do.  The table has no
reference to the graph.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...._forks import ForkLock
from ....errors import OutOfMemoryError
from ....graph.operators import SumOverRanks
from ....graph.operators.ranks import process_group_of
from ....graph.types import TensorType, numpy_dtype
from ....runtime.cores import usable_cores
from ....runtime.operand import Operand
from ..compilers.library import NativeFunction
from .buffers import AlignedMemory, Array
from .native import MAX_OPERANDS, OperandStruct, ProgramStruct, RegionStruct, runner

SPIN_MICROSECONDS = 100.0
"""How long a thread without work polls before it sleeps (waking it costs about 30)."""

_INT32 = (1 << 31) - 1


class Pool:
    """Threads that run regions, the calling one included.

    A run occupies its pool: runs on one pool take turns, runs on different pools (or on a pool of
    one thread, which has no threads of its own) go on at the same time.  Threads are started by
    the first run, again after a fork or :meth:`stop`; where the system grants fewer, fewer do.

    Args:
        team: the address of an OpenMP library's ``GOMP_parallel``, whose threads then do the work,
            up to a fork, instead of any of the pool's own.

    Raises:
        ValueError: ``threads`` is not between 1 and 1024.
    """

    def __init__(
        self,
        threads: int | None = None,
        spin_microseconds: float = SPIN_MICROSECONDS,
        build_flags: tuple[str, ...] = (),
        team: int | None = None,
    ) -> None:
        count = usable_cores() if threads is None else threads
        if not 1 <= count <= 1024:
            raise ValueError(f"Pool: threads={threads} is not between 1 and 1024")
        self.threads = count
        self._library = runner(build_flags)
        self.handle = self._library.md_pool_new(count, int(spin_microseconds * 1000), team)
        if not self.handle:
            raise OutOfMemoryError(f"a pool of {count} threads cannot be allocated")
        self._finalizer = weakref.finalize(self, self._library.md_pool_free, self.handle)
        # Threads are joined at exit by stop_all, in an order that this module controls.
        self._finalizer.atexit = False
        _pools.add(self)

    def alive(self) -> int:
        """How many threads of its own, callers not included, exist now."""
        return int(self._library.md_pool_alive(self.handle))

    def stop(self) -> None:
        """Ends the threads after the run under way; the next run starts them again."""
        self._library.md_pool_stop(self.handle)

    def rest(self) -> None:
        """Has threads sleep until the next run: something else needs their cores at once."""
        self._library.md_pool_rest(self.handle)

    def __repr__(self) -> str:
        return f"Pool(threads={self.threads})"


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_shared: dict[tuple[int, int | None], Pool] = {}
_shared_lock = ForkLock()


def shared_pool(threads: int | None = None, team: int | None = None) -> Pool:
    """The process's pool of that many threads (all usable cores when None), see :class:`Pool`."""
    count = usable_cores() if threads is None else threads
    with _shared_lock:
        if (count, team) not in _shared:
            _shared[count, team] = Pool(count, team=team)
        return _shared[count, team]


@atexit.register
def stop_all() -> None:
    """Ends the threads of every pool."""
    for pool in list(_pools):
        pool.stop()


@dataclass(frozen=True)
class BoundKernel:
    """A region: one launch of a kernel over ``tasks`` tasks.

    Attributes:
        kernel: computes tasks ``begin`` to ``end - 1`` in any order and on any thread: the result
            of a task must not depend on which others ran before it.
        operands: the addresses that the kernel receives in ``md_pointers``.
        grain: tasks handed out at a time, to make a call worth its cost.
    """

    kernel: NativeFunction
    operands: tuple[Operand, ...]
    tasks: int
    grain: int = 1
    name: str = ""


@dataclass(frozen=True)
class Group:
    """Regions run one after another for each of ``items`` items (images), on one thread each."""

    regions: tuple[BoundKernel, ...]
    items: int
    name: str = ""


class NativeProgram:
    """Regions in order, ready to run.

    Args:
        regions: each sees what the ones before it wrote.
        slots: how many buffers a run is given; operands point into them.
        scratch_bytes: memory of each thread that kernels may use within a call.
        pool: by default the process's pool for all usable cores.
        guarded: scratch memory between guard pages, filled with NaN.

    Raises:
        ValueError: an operand names a slot that is not there, tasks or grain are out of range;
            the message names the region.

    A program may run in several threads at once, each run with its own buffers: see :class:`Pool`.
    """

    def __init__(
        self,
        regions: Sequence[BoundKernel | Group],
        slots: int,
        scratch_bytes: int = 0,
        pool: Pool | None = None,
        guarded: bool = False,
    ) -> None:
        if slots < 0 or scratch_bytes < 0:
            raise ValueError(
                f"NativeProgram: slots={slots}, scratch_bytes={scratch_bytes}: negative"
            )
        self.regions = tuple(regions)
        self.slots = slots
        self.pool = pool or shared_pool()
        self._library = self.pool._library
        self._guarded = guarded
        rows, operands = _flatten(self.regions, slots)
        self._rows = (RegionStruct * len(rows))(*rows)
        self._operands = (OperandStruct * len(operands))(*operands)
        self._struct = ProgramStruct(
            ctypes.addressof(self._rows),
            ctypes.addressof(self._operands),
            len(rows),
            len(operands),
            slots,
            0,
            scratch_bytes,
        )
        # A deque's append and pop are atomic: contexts are handed out without a lock, which
        # could be held by another thread while this process forks.
        self._idle: collections.deque[_Context] = collections.deque()
        self._bases = ctypes.c_void_p * slots
        #: For each region that is a Python function, the list of exceptions that it raised.
        self._raised = [
            region.kernel.raised
            for region in self.regions
            if isinstance(region, BoundKernel) and isinstance(region.kernel, HostFunction)
        ]
        self._row_of = _row_numbers(self.regions)

    def run(self, bases: Sequence[int]) -> None:
        """Runs all regions on the buffers at these addresses (one for each slot).

        Buffers must stay alive and be used by nobody else meanwhile.  The GIL is released.

        Raises:
            ValueError: there are not as many addresses as slots.
            OutOfMemoryError: there is no memory for the threads' scratch.
        """
        self._run(bases, None)

    def run_timed(self, bases: Sequence[int]) -> np.ndarray:
        """Like :meth:`run`; returns the seconds of each region (float64, one per region, with
        the members of a group in its place).

        Members run side by side for different items: they share the seconds of their group as they
        keep the threads busy.
        """
        times = (ctypes.c_double * max(1, len(self._rows)))()
        self._run(bases, times)
        return np.array([times[row] for row in self._row_of])

    def _run(self, bases: Sequence[int], times: ctypes.Array[ctypes.c_double] | None) -> None:
        if len(bases) != self.slots:
            raise ValueError(f"NativeProgram.run: {len(bases)} addresses for {self.slots} slots")
        try:
            context = self._idle.pop()
        except IndexError:
            context = _Context(self)
        try:
            self._library.md_run(
                self.pool.handle, self._struct, context.handle, self._bases(*bases), times
            )
        finally:
            self._idle.append(context)
        for raised in self._raised:
            if raised:
                raise raised.pop()


class _Context:
    """What a run needs for itself (addresses, scratch); reused by later runs."""

    def __init__(self, program: NativeProgram) -> None:
        library = program._library
        threads = program.pool.threads
        self.handle = library.md_context_new(program._struct, threads, int(program._guarded))
        if not self.handle:
            size = program._struct.scratch_bytes
            raise OutOfMemoryError(f"scratch of {size} bytes for {threads} threads: no memory")
        weakref.finalize(self, library.md_context_free, self.handle).atexit = False


def _row_numbers(regions: tuple[BoundKernel | Group, ...]) -> list[int]:
    """The native table's rows of kernels; a group has a row of its own before its members."""
    numbers: list[int] = []
    row = 0
    for region in regions:
        members = len(region.regions) if isinstance(region, Group) else 0
        numbers += range(row + 1, row + 1 + members) if members else [row]
        row += 1 + members
    return numbers


def _flatten(
    regions: tuple[BoundKernel | Group, ...], slots: int
) -> tuple[list[RegionStruct], list[OperandStruct]]:
    """The rows and operands of the native table; messages name the region that is not valid."""
    rows: list[RegionStruct] = []
    operands: list[OperandStruct] = []
    for index, region in enumerate(regions):
        what = f"region {index}" + (f" ({region.name})" if region.name else "")
        if isinstance(region, Group):
            _check(0 <= region.items <= _INT32, f"{what}: items={region.items}")
            rows.append(RegionStruct(None, len(operands), 0, region.items, 1, len(region.regions)))
            for member in region.regions:
                inner, count = f"{what}, member {member.name}", len(member.operands)
                excess = f"{count} operands, more than {MAX_OPERANDS}"
                _check(count <= MAX_OPERANDS, f"{inner}: {excess}")
                rows.append(_row(member, inner, operands, slots))
        else:
            strides = [o for o in region.operands if o.item_stride or o.thread_stride]
            _check(not strides, f"{what}: strides are for members of a group: {strides}")
            rows.append(_row(region, what, operands, slots))
    return rows, operands


def _row(region: BoundKernel, what: str, operands: list[OperandStruct], slots: int) -> RegionStruct:
    _check(region.kernel.address != 0, f"{what}: the kernel has no address")
    _check(0 <= region.tasks <= _INT32, f"{what}: tasks={region.tasks} is not in 0..2**31-1")
    _check(1 <= region.grain <= _INT32, f"{what}: grain={region.grain} is not in 1..2**31-1")
    first, count = len(operands), len(region.operands)
    for operand in region.operands:
        _check(0 <= operand.slot < slots, f"{what}: {operand} names none of the {slots} slots")
        operands.append(
            OperandStruct(
                operand.offset, operand.item_stride, operand.thread_stride, operand.slot, 0
            )
        )
    return RegionStruct(region.kernel.address, first, count, region.tasks, region.grain, 0)


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"NativeProgram: {message}")


_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int, ctypes.c_void_p
)


@dataclass(frozen=True, eq=False)
class HostFunction(NativeFunction):
    """A Python function as a kernel; what it raises is raised once the run has ended."""

    kept: Any = field(default=None, repr=False)
    raised: list[BaseException] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class HostSum:
    """A sum over ranks as a kernel, whose pointers are all operands, then all results."""

    op: SumOverRanks
    types: tuple[TensorType, ...]

    def function(self) -> HostFunction:
        """The sum as a function that the runner can call: a callback into Python."""
        raised: list[BaseException] = []

        def kernel(pointers: Any, begin: int, end: int, scratch: Any) -> None:
            try:
                self._add(pointers)
            except BaseException as error:  # C cannot hand it on
                raised.append(error)

        callback = _KERNEL(kernel)
        address = ctypes.cast(callback, ctypes.c_void_p).value or 0
        return HostFunction(self.op.name, address, Path(), callback, raised)

    def _add(self, pointers: Any) -> None:
        """Copies the operands to the results, and adds these over all ranks in place."""
        count = len(self.types)
        sums = []
        for i, type in enumerate(self.types):
            result = _array(pointers[count + i], type)
            result[...] = _array(pointers[i], type)
            sums.append(result)
        if self.op.ranks > 1:
            process_group_of(self.op.ranks).add(sums)


def _array(address: int, type: TensorType) -> np.ndarray:
    """The array of a value at an address, which is not copied."""
    dtype = numpy_dtype(type.dtype)
    size = prod(type.shape) * dtype.itemsize
    if not size:
        return np.empty(type.shape, dtype)
    held: Any = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(held, dtype).reshape(type.shape)


@dataclass(frozen=True)
class Table:
    """The regions of a program, whose operands refer to numbered slots.

    The slots are first the memory of a run, then inputs, outputs, states, and last the constants.

    Attributes:
        memory: for each slot that a run allocates, its bytes for all threads and for each of them.
        sources: for each output the input, output or state (they come in this order), or the
            constant, that it is a copy of; None if kernels write it.
        scratch_bytes: scratch memory of each thread.
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
    """Runs a table; several threads may run it at once.

    Args:
        threads: the number of threads that a run uses.
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
        self._sizes = [
            shared_bytes + threads * thread_bytes for shared_bytes, thread_bytes in table.memory
        ]
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
        """Returns freed memory to the system, as far as the allocator can."""
        runner().md_memory_release()

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Computes the outputs; several threads may call at once."""
        self._run(inputs, outputs, self._program.run)

    @property
    def takes_addresses(self) -> bool:
        """Whether :meth:`run_at` can be used: kernels write all outputs, and none is guarded."""
        return not self.guarded and all(source is None for source in self.table.sources)

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Like :meth:`run`, on contiguous arrays of the right types at these addresses."""
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
            memory_addresses = [buffer.address for buffer in memory]
            run([*memory_addresses, *addresses, *self._addresses, self._constants_at])
        finally:
            self._idle.append(memory)

    def _finish(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Writes the outputs that no kernel writes: copies of inputs, constants, unchanged states,
        or other outputs."""
        arrays = (*inputs, *outputs, *self._states)
        for source, array in zip(self.table.sources, outputs, strict=True):
            if source is not None:
                original = arrays[source] if isinstance(source, int) else source
                array[...] = np.reshape(original, array.shape)
