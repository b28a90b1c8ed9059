"""Instances: a program's memory on the device and the CUDA graph that works on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from ...cudnn import driver
from ...cudnn._cupy import cupy
from ...graph.ir import Constant, Value
from ...runtime.plan import Plan
from .arrays import DEVICE_TO_DEVICE, Given
from .block import Block
from .functions import KernelRun, parts_of
from .memory import allocated
from .places import TaskWork, ValueAddresses
from .replay import Aim, End, KernelNode, Replay
from .sites import Site, sites_of_ends


class Instance:
    """One set of buffers, on which the whole plan is captured as a CUDA graph.  It is run once
    here, on zeros, which changes the states that the plan updates."""

    def __init__(
        self,
        plan: Plan,
        block: Block,
        works: Sequence[TaskWork],
        constant: Callable[[Constant], int],
        states: Mapping[Value, int],
        inputs: Sequence[int] | None = None,
        outputs: Sequence[int] | None = None,
    ) -> None:
        cuda = cupy().cuda
        own = inputs is None or outputs is None
        size = block.own_bytes if own else block.bytes
        self._memory = allocated(size, "activations and workspace")
        begin = int(self._memory.ptr)
        self.inputs = tuple(inputs or (begin + offset for offset in block.inputs))
        self.outputs = tuple(outputs or (begin + offset for offset in block.outputs))
        self.places = ValueAddresses(plan, begin, self.inputs, self.outputs, states)
        self._runtime = cuda.runtime
        self.lock = threading.Lock()
        self.done = cuda.Event(disable_timing=True)
        self.stream = cuda.Stream(non_blocking=True)
        self.runs = [work.bind(self.places) for work in works]
        self._copies = [
            (to, constant(root) if isinstance(root, Constant) else self.places.address(root), size)
            for to, root, size in self.places.copies
        ]
        #: What reaches callers' arrays; a bound instance, which has them, has none.
        self.takes: list[End] = []
        self.gives: list[End] = []
        self._sites: list[tuple[Site, ...]] = []
        if own:
            inner = zip(self.inputs, plan.graph.inputs, strict=True)
            outer = zip(self.outputs, plan.graph.outputs, strict=True)
            self.takes = [End(at, value.type.bytes, takes=True) for at, value in inner]
            self.gives = [End(at, value.type.bytes, takes=False) for at, value in outer]
            self._sites = sites_of_ends(plan, works, self.runs, self.places)
        with self.stream:
            if inputs is None:  # what nobody has written yet is zeros
                for address, value in zip(self.inputs, plan.graph.inputs, strict=True):
                    cuda.runtime.memsetAsync(address, 0, value.type.bytes, self.stream.ptr)
            self._enqueue()  # loads what is loaded late, and shows failures
            self.stream.synchronize()
            self._replay = Replay(self.stream, self._captured, self.takes, self.gives)
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
        for end, one in zip(self.takes, given, strict=True):
            if not end.reach(one.pointer, one.kind, apart):
                runtime.memcpyAsync(end.address, one.pointer, end.bytes, one.kind, stream)
        left = [
            (end, one)
            for end, one in zip(self.gives, results, strict=True)
            if not end.reach(one.pointer, one.kind, apart)
        ]
        runtime.graphLaunch(self.executable, stream)
        for end, one in left:
            runtime.memcpyAsync(one.pointer, end.address, end.bytes, one.kind, stream)

    def _enqueue(self) -> None:
        for run in self.runs:
            run()
        self.copy_outputs()

    def _captured(self) -> None:
        """Enqueues all, and has the ends know the nodes of the kernels that work on them."""
        nodes: dict[int, KernelNode] = {}
        wanted = {site.part for sites in self._sites for site in sites}
        for number, part in enumerate(part for run in self.runs for part in parts_of(run)):
            part()
            if number in wanted and (now := driver.captured(self.stream.ptr)) is not None:
                assert isinstance(part, KernelRun)
                (node,) = now[1]
                nodes[number] = KernelNode(node, part.arguments)
        self.copy_outputs()
        for end, sites in zip((*self.takes, *self.gives), self._sites, strict=True):
            if nodes:
                end.aims = [Aim(nodes[one.part], one.argument, one.offset) for one in sites]

    def copy_outputs(self) -> None:
        """Copies outputs that no kernel writes: inputs, constants, and values given twice."""
        runtime, stream = cupy().cuda.runtime, self.stream.ptr
        for to, source, size in self._copies:
            runtime.memcpyAsync(to, source, size, DEVICE_TO_DEVICE, stream)

    def is_idle(self) -> bool:
        """Whether what was last started on it is done."""
        return bool(self.done.done)
