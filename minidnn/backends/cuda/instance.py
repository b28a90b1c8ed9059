"""Instances: a program's memory on the device and the CUDA graph that works on it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any
from weakref import finalize

from ...cudnn import driver
from ...gpu import cupy
from ...runtime.operand import resolved
from .arrays import DEVICE_TO_DEVICE, Given
from .functions import KernelRun
from .memory import allocated
from .replay import Aim, End, KernelNode, Replay
from .table import CudaTable, Site


class SharedArena:
    """Memory for values and workspaces, in which instances take turns.

    Args:
        bytes: how many are allocated at once, at least.
        address: of a caller's memory, which suffices for every instance; 0 to allocate some.

    Attributes:
        bytes: as given, or more by now.
        lock: for who enqueues a run.
        done: the event after the last one.
    """

    def __init__(self, bytes: int = 0, address: int = 0) -> None:
        self.bytes = bytes
        self.lock = threading.Lock()
        self.done = cupy().cuda.Event(disable_timing=True)
        self._address = address
        self._memory: Any = None
        self._allocated = 0

    def memory(self, size: int) -> tuple[int, Any]:
        """Where that for an instance of so many bytes begins, and what keeps it.  Where there is
        less, there is more from now on; instances that were made before work where they did."""
        if self._address:
            return self._address, None
        with self.lock:
            if self._memory is None or size > self._allocated:
                self.bytes = max(size, self.bytes)
                self._memory = allocated(self.bytes, "activations and workspace")
                self._allocated = self.bytes
            return int(self._memory.ptr), self._memory


def _wait(event: Any) -> None:
    with suppress(Exception):  # an error of the device, which its next use reports
        event.synchronize()


class Instance:
    """One set of buffers, on which a whole table is captured as a CUDA graph.  It is run once here,
    on zeros, which changes the states that are updated, unless its buffers are external.

    Args:
        states: where each lies.
        constants: where they begin.
        inputs, outputs: the caller's, at these addresses, for good; by default memory of its own.
        external: the addresses of callers' buffers for all inputs, then outputs, where kernels work
            until they are told of others; None for one that is copied from or to memory that is
            allocated for that.
        fixed: the numbers of those that stay at that address.
        arena: where it works with others, if its buffers are external; by default one of its own.
    """

    def __init__(
        self,
        table: CudaTable,
        states: Sequence[int],
        constants: int,
        inputs: Sequence[int] | None = None,
        outputs: Sequence[int] | None = None,
        external: Sequence[int | None] | None = None,
        fixed: Collection[int] = (),
        arena: SharedArena | None = None,
    ) -> None:
        cuda = cupy().cuda
        block, sizes = table.block, (*table.inputs, *table.outputs)
        own = inputs is None or outputs is None
        if arena is None:
            arena = SharedArena(block.own_bytes if own else block.bytes)
        begin, self._memory = arena.memory(block.bytes)
        #: Where the memory of values begins.
        self.begin = begin
        count = len(block.inputs)
        if external is None:
            ends = [begin + offset for offset in (*block.inputs, *block.outputs)]
        else:
            ends = [begin if address is None else address for address in external]
        self.inputs = tuple(inputs or ends[:count])
        self.outputs = tuple(outputs or ends[count:])
        bases = (begin, *self.inputs, *self.outputs, *states, constants)
        self._runtime = cuda.runtime
        self.lock, self.done = arena.lock, arena.done
        # What is freed may be given to others at once, so nothing may work there.  A collector of
        # cycles destroys this and the event in any order: it must not be waited for in __del__.
        finalize(self, _wait, arena.done).atexit = False
        self.stream = cuda.Stream(non_blocking=True)
        #: Of each task, in order.
        self.runs = [[row.bind(bases) for row in rows] for rows in table.tasks]
        self._copies = [(*resolved((to, source), bases), size) for to, source, size in table.copies]
        #: What reaches callers' arrays; a bound instance, which has them, has none.
        self.takes: list[End | None] = []
        self.gives: list[End | None] = []
        self._sites: list[tuple[Site, ...]] = []
        #: Of all arrays of the launch before, if the graph works at all of them.
        self._reached: list[int] | None = None
        if own:
            made = [
                None
                if place in fixed
                else End(address, size, takes=place < count, own=external is None)
                for place, (address, size) in enumerate(zip(ends, sizes, strict=True))
            ]
            self.takes, self.gives = made[:count], made[count:]
            self._sites = [
                () if place in fixed else table.sites(1 + place) for place in range(len(ends))
            ]
        with self.stream:
            if inputs is None and external is None:  # what nobody has written yet is zeros
                for address, size in zip(self.inputs, table.inputs, strict=True):
                    cuda.runtime.memsetAsync(address, 0, size, self.stream.ptr)
            if external is None:  # else another instance did, and what lies there is in use
                self._enqueue()  # loads what is loaded late, and shows failures
                self.stream.synchronize()
            takes, gives = ([end for end in some if end] for some in (self.takes, self.gives))
            self._replay = Replay(self.stream, self._captured, takes, gives)
        self.executable = self._replay.executable
        cuda.runtime.graphUpload(self.executable, self.stream.ptr)
        self.stream.synchronize()

    def launch(
        self, given: Sequence[Given], results: Sequence[Given], stream: int, apart: bool
    ) -> None:
        """Computes results of what is given, on a stream, without waiting.

        apart: whether kernels may work on these arrays where they lie, as no result overlaps
            anything that is given.
        """
        runtime = self._runtime
        pointers = [one.pointer for one in (*given, *results)] if apart else None
        if pointers is not None and pointers == self._reached:
            return runtime.graphLaunch(self.executable, stream)
        self._reached = None
        is_all = apart
        for end, one in zip(self.takes, given, strict=True):
            if end is not None and not end.reach(one.pointer, one.kind, apart):
                runtime.memcpyAsync(end.address, one.pointer, end.bytes, one.kind, stream)
                is_all = False
        left = [
            (end, one)
            for end, one in zip(self.gives, results, strict=True)
            if end is not None and not end.reach(one.pointer, one.kind, apart)
        ]
        if is_all and not left:
            self._reached = pointers
        runtime.graphLaunch(self.executable, stream)
        for end, one in left:
            runtime.memcpyAsync(one.pointer, end.address, end.bytes, one.kind, stream)

    def _enqueue(self) -> None:
        for run in chain.from_iterable(self.runs):
            run()
        self.copy_outputs()

    def _captured(self) -> None:
        """Enqueues all, and has the ends know the nodes of the kernels that work on them."""
        nodes: dict[int, KernelNode] = {}
        wanted = {site.row for sites in self._sites for site in sites}
        for number, run in enumerate(chain.from_iterable(self.runs)):
            run()
            if number in wanted and (now := driver.captured(self.stream.ptr)) is not None:
                assert isinstance(run, KernelRun)
                (node,) = now[1]
                nodes[number] = KernelNode(node, run.arguments)
        self.copy_outputs()
        for end, sites in zip((*self.takes, *self.gives), self._sites, strict=True):
            if nodes and end is not None:
                end.aims = [Aim(nodes[one.row], one.argument, one.offset) for one in sites]

    def copy_outputs(self) -> None:
        """Copies outputs that no kernel writes: inputs, constants, and values given twice."""
        runtime, stream = cupy().cuda.runtime, self.stream.ptr
        for to, source, size in self._copies:
            runtime.memcpyAsync(to, source, size, DEVICE_TO_DEVICE, stream)

    def is_idle(self) -> bool:
        """Whether what was last started on it is done."""
        return bool(self.done.done)
