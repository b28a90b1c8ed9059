"""Instances: a program's memory on the device and the CUDA graph that works on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from ...cudnn._cupy import cupy
from ...graph.ir import Constant, Value
from ...runtime.plan import Plan
from .arrays import DEVICE_TO_DEVICE, Given
from .block import Block
from .functions import Run
from .memory import allocated
from .replay import End, Replay


class Work(Protocol):
    """What a task does, wherever its operands lie."""

    def bind(self, places: Places) -> Run:
        """What launches it on CuPy's current stream."""


class Places:
    """Where the values of a plan lie in one instance."""

    def __init__(
        self, plan: Plan, block: int, inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        #: Where the instance's memory begins, and in it the arena.
        self.block = block
        self._plan = plan
        self._roots = {value: block + offset for value, offset in plan.arena.offsets.items()}
        self._roots |= dict(zip(plan.graph.inputs, inputs, strict=True))
        #: What must be copied at the end: to, from (a value's root), bytes.
        self.copies: list[tuple[int, Value, int]] = []
        for value, address in zip(plan.graph.outputs, outputs, strict=True):
            root = plan.roots.get(value, value)
            if root in self._roots or isinstance(root, Constant):
                self.copies.append((address, root, value.type.bytes))
            else:
                self._roots[root] = address

    def address(self, value: Value) -> int:
        """Where the storage begins that a value lies in."""
        return self._roots[self._plan.roots.get(value, value)]


class Instance:
    """One set of buffers, on which the whole plan is captured as a CUDA graph."""

    def __init__(
        self,
        plan: Plan,
        block: Block,
        works: Sequence[Work],
        constant: Callable[[Constant], int],
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
        self.places = Places(plan, begin, self.inputs, self.outputs)
        self._runtime = cuda.runtime
        self.lock = threading.Lock()
        self.last: object = None
        self.done = cuda.Event(disable_timing=True)
        self.stream = cuda.Stream(non_blocking=True)
        self.runs = [work.bind(self.places) for work in works]
        self._copies = [
            (to, constant(root) if isinstance(root, Constant) else self.places.address(root), size)
            for to, root, size in self.places.copies
        ]
        #: Where copies begin and end; a bound instance has none.
        self._takes: list[End] = []
        self._gives: list[End] = []
        if own:
            inner = zip(self.inputs, plan.graph.inputs, strict=True)
            outer = zip(self.outputs, plan.graph.outputs, strict=True)
            self._takes = [End(at, value.type.bytes, takes=True) for at, value in inner]
            self._gives = [End(at, value.type.bytes, takes=False) for at, value in outer]
        with self.stream:
            if inputs is None:  # what nobody has written yet is zeros
                for address, value in zip(self.inputs, plan.graph.inputs, strict=True):
                    cuda.runtime.memsetAsync(address, 0, value.type.bytes, self.stream.ptr)
            self._enqueue()  # loads what is loaded late, and shows failures
            self.stream.synchronize()
            self._replay = Replay(self.stream, self._enqueue, self._takes, self._gives)
        self.executable = self._replay.executable
        cuda.runtime.graphUpload(self.executable, self.stream.ptr)
        self.stream.synchronize()

    def launch(self, given: Sequence[Given], results: Sequence[Given], stream: int) -> None:
        """Computes results of what is given, on a stream, without waiting."""
        runtime = self._runtime
        for end, one in zip(self._takes, given, strict=True):
            if not end.reach(one.pointer, one.kind):
                runtime.memcpyAsync(end.address, one.pointer, end.bytes, one.kind, stream)
        left = [
            (end, one)
            for end, one in zip(self._gives, results, strict=True)
            if not end.reach(one.pointer, one.kind)
        ]
        runtime.graphLaunch(self.executable, stream)
        for end, one in left:
            runtime.memcpyAsync(one.pointer, end.address, end.bytes, one.kind, stream)

    def _enqueue(self) -> None:
        for run in self.runs:
            run()
        self.copy_outputs()

    def copy_outputs(self) -> None:
        """Copies outputs that no kernel writes: inputs, constants, and values given twice."""
        runtime, stream = cupy().cuda.runtime, self.stream.ptr
        for to, source, size in self._copies:
            runtime.memcpyAsync(to, source, size, DEVICE_TO_DEVICE, stream)

    def is_idle(self) -> bool:
        """Whether what was last started on it is done."""
        return bool(self.done.done)
