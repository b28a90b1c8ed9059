"""Instances: a program's activations and workspaces on the device, and the CUDA graph on them.

Several instances of a program can run at once, each on a stream of its own; those that share an
arena run one after the other.
"""

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
from .arrays import DEVICE_TO_DEVICE, CallerArray
from .functions import KernelRun
from .memory import allocated
from .replay import Aim, End, KernelNode, Replay
from .table import CudaTable, Site


class SharedArena:
    """Device memory for values and workspaces that one or several instances use, one at a time.

    Args:
        bytes: the least size of an allocation.
        address: a caller's memory, which is large enough for every instance; 0 to allocate.

    Attributes:
        bytes: the size that is allocated, or will be when the first instance asks for memory.
        lock: held while a run is enqueued.
        done: the event recorded after the last run; the next one waits for it.
    """

    def __init__(self, bytes: int = 0, address: int = 0) -> None:
        self.bytes = bytes
        self.lock = threading.Lock()
        self.done = cupy().cuda.Event(disable_timing=True)
        self._address = address
        self._memory: Any = None
        self._allocated = 0

    def memory(self, size: int) -> tuple[int, Any]:
        """Returns the address of memory for an instance of ``size`` bytes, and the owner that keeps
        it allocated.

        If the arena is smaller, it gets a larger allocation; earlier instances keep the old one.
        """
        if self._address:
            return self._address, None
        with self.lock:
            if self._memory is None or size > self._allocated:
                self.bytes = max(size, self.bytes)
                self._memory = allocated(self.bytes, "activations and workspace")
                self._allocated = self.bytes
            return int(self._memory.ptr), self._memory


def _wait(event: Any) -> None:
    """Waits for the last run before an instance's memory is freed."""
    with suppress(Exception):  # an error of the device, which its next use reports
        event.synchronize()


class Instance:
    """One set of buffers, and the CUDA graph of a whole table captured on them.

    Unless its inputs and outputs are external, making an instance runs the table once, on zeros,
    which changes the states that the table updates.

    Args:
        table: the launches, in order.
        states: the address of each state.
        constants: the address of the constants.
        inputs, outputs: the addresses of a caller's arrays, which are used for good; by default
            the instance has buffers of its own.
        external: the first addresses of callers' buffers for all inputs, then outputs, which later
            launches may replace; None for one that is copied through a buffer of the instance.
        fixed: the indices, in ``external``, of those that are never replaced.
        arena: memory shared with other instances, if buffers are external; by default its own.

    Attributes:
        begin: the address of values and workspaces.
        inputs, outputs: the addresses that kernels were captured with.
        lock, done: those of the arena.
        stream: the stream on which the table is captured.
        runs: the bound launches of each task, in order.
        takes, gives: the ends of inputs and outputs, None for those whose address is fixed; empty
            for a caller's arrays that are used for good.
        executable: the handle of the executable graph.
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
        unbound = inputs is None or outputs is None
        if arena is None:
            arena = SharedArena(block.own_bytes if unbound else block.bytes)
        begin, self._memory = arena.memory(block.bytes)
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
        # Freed memory may be reused at once, so the last run must be over by then.  The garbage
        # collector destroys this object and the event in any order, so __del__ could not wait.
        finalize(self, _wait, arena.done).atexit = False
        self.stream = cuda.Stream(non_blocking=True)
        self.runs = [[row.bind(bases) for row in rows] for rows in table.tasks]
        self._copies = [(*resolved((to, source), bases), size) for to, source, size in table.copies]
        # An instance that is bound to a caller's arrays for good has no ends.
        self.takes: list[End | None] = []
        self.gives: list[End | None] = []
        self._sites: list[tuple[Site, ...]] = []
        #: The addresses of the last launch, if the graph reached all of its arrays.
        self._reached: list[int] | None = None
        if unbound:
            all_ends = [
                None
                if index in fixed
                else End(address, size, takes=index < count, own=external is None)
                for index, (address, size) in enumerate(zip(ends, sizes, strict=True))
            ]
            self.takes, self.gives = all_ends[:count], all_ends[count:]
            self._sites = [
                () if index in fixed else table.sites(1 + index) for index in range(len(ends))
            ]
        with self.stream:
            if inputs is None and external is None:  # the first run reads zeros
                for address, size in zip(self.inputs, table.inputs, strict=True):
                    cuda.runtime.memsetAsync(address, 0, size, self.stream.ptr)
            if external is None:  # else another instance did this, and the buffers hold data
                self._enqueue()  # loads modules that load lazily, and shows failures
                self.stream.synchronize()
            takes, gives = ([end for end in some if end] for some in (self.takes, self.gives))
            self._replay = Replay(self.stream, self._captured, takes, gives)
        self.executable = self._replay.executable
        cuda.runtime.graphUpload(self.executable, self.stream.ptr)
        self.stream.synchronize()

    def launch(
        self, given: Sequence[CallerArray], results: Sequence[CallerArray], stream: int, apart: bool
    ) -> None:
        """Enqueues a run on a stream: copies of inputs that the graph does not reach, the graph,
        and copies of such outputs.

        apart: whether kernels may read and write these arrays directly, as no result overlaps any
            other array.
        """
        runtime = self._runtime
        pointers = [array.pointer for array in (*given, *results)] if apart else None
        if pointers is not None and pointers == self._reached:
            return runtime.graphLaunch(self.executable, stream)
        self._reached = None
        reached_all = apart
        for end, array in zip(self.takes, given, strict=True):
            if end is not None and not end.reach(array.pointer, array.kind, apart):
                runtime.memcpyAsync(end.address, array.pointer, end.bytes, array.kind, stream)
                reached_all = False
        copied = [
            (end, array)
            for end, array in zip(self.gives, results, strict=True)
            if end is not None and not end.reach(array.pointer, array.kind, apart)
        ]
        if reached_all and not copied:
            self._reached = pointers
        runtime.graphLaunch(self.executable, stream)
        for end, array in copied:
            runtime.memcpyAsync(array.pointer, end.address, end.bytes, array.kind, stream)

    def _enqueue(self) -> None:
        for run in chain.from_iterable(self.runs):
            run()
        self.copy_outputs()

    def _captured(self) -> None:
        """Enqueues the table during capture, and gives each end the arguments of the kernel nodes
        that read or write it."""
        nodes: dict[int, KernelNode] = {}
        rows = {site.row for sites in self._sites for site in sites}
        for number, run in enumerate(chain.from_iterable(self.runs)):
            run()
            if number in rows and (state := driver.captured(self.stream.ptr)) is not None:
                assert isinstance(run, KernelRun)
                (node,) = state[1]
                nodes[number] = KernelNode(node, run.arguments)
        self.copy_outputs()
        for end, sites in zip((*self.takes, *self.gives), self._sites, strict=True):
            if nodes and end is not None:
                end.aims = [Aim(nodes[one.row], one.argument, one.offset) for one in sites]

    def copy_outputs(self) -> None:
        """Enqueues the copies of outputs that no kernel writes: inputs, constants, and values that
        are an output twice."""
        runtime, stream = cupy().cuda.runtime, self.stream.ptr
        for to, source, size in self._copies:
            runtime.memcpyAsync(to, source, size, DEVICE_TO_DEVICE, stream)

    def is_idle(self) -> bool:
        """Whether its last run, or the last one in its arena, is over."""
        return bool(self.done.done)
