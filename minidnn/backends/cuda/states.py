"""The states of a store in a GPU's memory, and the order of the runs that work on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...gpu import cupy
from ...graph.ir import Graph, State
from ...runtime.arrays import from_bits, to_bits
from ...runtime.store import StateMemory, Store
from .memory import allocated


@dataclass(frozen=True)
class DeviceArray:
    """A state's array on a GPU."""

    memory: Any
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    @property
    def address(self) -> int:
        return int(self.memory.ptr)


class DeviceMemory(StateMemory):
    """A GPU's memory, for one store.

    Runs are started on any streams and not waited for, and each works on what the one before it
    left: a stream waits for the one before.  That may be itself, but handles do not tell, as a new
    stream may have that of one that is gone and whose work still runs.
    """

    def __init__(self, device: int) -> None:
        self.name = f"cuda:{device}"
        self._device = device
        with cupy().cuda.Device(device):
            self._done = cupy().cuda.Event(disable_timing=True)

    @contextmanager
    def turn(self, stream: int) -> Iterator[None]:
        """See :meth:`StatesInTurn.turn`; the caller holds the store's lock."""
        runtime = cupy().cuda.runtime
        runtime.streamWaitEvent(stream, self._done.ptr)
        try:
            yield
        finally:
            runtime.eventRecord(self._done.ptr, stream)

    def keep(self, array: np.ndarray, dtype: str) -> DeviceArray:
        bits = to_bits(array, dtype)
        with cupy().cuda.Device(self._device):
            memory = allocated(bits.nbytes, "states")
        kept = DeviceArray(memory, array.shape, dtype, bits.nbytes)
        self.write(kept, array)
        return kept

    def read(self, kept: DeviceArray) -> np.ndarray:
        held = np.uint16 if kept.dtype == "bfloat16" else np.dtype(kept.dtype)
        bits = np.empty(kept.shape, held)
        with cupy().cuda.Device(self._device):
            self._done.synchronize()
            kept.memory.copy_to_host(bits.ctypes.data, kept.bytes)
        return from_bits(bits, kept.dtype)

    def write(self, kept: DeviceArray, array: np.ndarray) -> None:
        bits = to_bits(array, kept.dtype)
        cuda = cupy().cuda
        with cuda.Device(self._device):
            self._done.synchronize()
            kept.memory.copy_from_host(bits.ctypes.data, kept.bytes)
            # From pageable memory a copy may still be on its way, and streams that do not wait for
            # the default one run on.
            cuda.Stream.null.synchronize()


class StatesInTurn:
    """The states of a graph in a store, and when a program may work on them."""

    def __init__(self, graph: Graph, store: Store, device: int) -> None:
        self._store = store
        with store.lock:
            held: dict[State, DeviceArray] = store.hold(graph.states, DeviceMemory(device))
            assert isinstance(store.memory, DeviceMemory)
            self._memory = store.memory
        self._updated = [state.name for state in graph.updates]
        #: Where each lies, in the graph's order.
        self.addresses = [held[state].address for state in graph.states]
        self.bytes = sum(one.bytes for one in held.values())
        self._kept = held

    @contextmanager
    def turn(self, stream: int) -> Iterator[None]:
        """What is enqueued on a stream of the current device meanwhile comes behind all earlier
        runs on the store's states, and in front of all later ones."""
        with self._store.lock, self._memory.turn(stream):
            yield

    def unchanged(self) -> AbstractContextManager[None]:
        """Meanwhile no other run begins; what happens to the states is undone."""
        return self._store.unchanged(self._updated)
