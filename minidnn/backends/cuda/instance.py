"""Instances: a program's memory on the device and the CUDA graph that works on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...cudnn._cupy import cupy
from ...cudnn.capture import capture
from ...errors import OutOfMemoryError
from ...graph.ir import Constant, Value
from ...runtime.plan import Plan
from .arrays import DEVICE_TO_DEVICE
from .functions import Run

_ALIGNMENT = 256


class Work(Protocol):
    """What a task does, wherever its operands lie."""

    def bind(self, places: Places) -> Run:
        """What launches it on CuPy's current stream."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of the blocks of an instance; inputs and outputs are its own or a caller's."""

    arena: int
    workspace: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def own(self, with_inputs: bool, with_outputs: bool) -> list[int]:
        blocks = [self.arena, self.workspace]
        blocks += self.inputs if with_inputs else ()
        blocks += self.outputs if with_outputs else ()
        return blocks

    def total(self) -> int:
        """Bytes that an instance with inputs and outputs of its own takes."""
        return sum(map(_up, self.own(True, True)))


class Places:
    """Where the values of a plan lie in one instance."""

    def __init__(
        self, plan: Plan, arena: int, workspace: int, inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        self.workspace = workspace
        self._plan = plan
        self._roots = {value: arena + offset for value, offset in plan.arena.offsets.items()}
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
        sizes: Sizes,
        works: Sequence[Work],
        constant: Callable[[Constant], int],
        inputs: Sequence[int] | None = None,
        outputs: Sequence[int] | None = None,
    ) -> None:
        cuda = cupy().cuda
        blocks = sizes.own(inputs is None, outputs is None)
        self._memory, addresses = _allocate(blocks)
        arena, workspace, *rest = addresses
        count = len(sizes.inputs) if inputs is None else 0
        self.inputs = tuple(rest[:count] if inputs is None else inputs)
        self.outputs = tuple(rest[count:] if outputs is None else outputs)
        self.places = Places(plan, arena, workspace, self.inputs, self.outputs)
        self.lock = threading.Lock()
        self.last: object = None
        self.done = cuda.Event(disable_timing=True)
        self.stream = cuda.Stream(non_blocking=True)
        self.runs = [work.bind(self.places) for work in works]
        self._copies = [
            (to, constant(root) if isinstance(root, Constant) else self.places.address(root), size)
            for to, root, size in self.places.copies
        ]
        with self.stream:
            self._enqueue()  # loads what is loaded late, and shows failures
            self.stream.synchronize()
            self._graph = capture(self.stream, self._enqueue)
        self._graph.upload(self.stream)
        self.stream.synchronize()
        self.executable = int(self._graph.graphExec)

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


def _allocate(blocks: Sequence[int]) -> tuple[Any, list[int]]:
    cuda = cupy().cuda
    total = sum(map(_up, blocks))
    try:
        memory = cuda.alloc(max(1, total))
    except cuda.memory.OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"no room for {total} bytes of activations and workspace: {error}"
        ) from error
    addresses, offset = [], 0
    for size in blocks:
        addresses.append(int(memory.ptr) + offset)
        offset += _up(size)
    return memory, addresses


def _up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
