"""The states of a store in a GPU's memory, and the order of the runs that read and update them."""

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
    """A state's array on a GPU: the owner of its memory, and its shape, dtype and size in bytes."""

    memory: Any
    shape: tuple[int, ...]
    dtype: str
    bytes: int

    @property
    def address(self) -> int:
        return int(self.memory.ptr)


class DeviceMemory(StateMemory):
    """A GPU's memory, for one store.

    Runs are enqueued on any streams without waiting, and each reads the states that the run before
    it wrote, so its stream waits for an event after that run.  It does so even if the handle is
    that of the last run's stream: a new stream may have the handle of a destroyed one whose work
    still runs.
    """

    def __init__(self, device: int) -> None:
        self.name = f"cuda:{device}"
        self._device = device
        with cupy().cuda.Device(device):
            self._done = cupy().cuda.Event(disable_timing=True)

    @contextmanager
    def turn(self, stream: int) -> Iterator[None]:
        """See :meth:`OrderedStates.turn`; the caller holds the store's lock."""
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
            # A copy from pageable memory may return before its transfer is over, and non-blocking
            # streams do not wait for the default one.
            cuda.Stream.null.synchronize()


class OrderedStates:
    """The states of one program's graph in a store, and the order of its runs on them.

    Attributes:
        addresses: the device address of each state, in the graph's order.
        bytes: their size.
    """

    def __init__(self, graph: Graph, store: Store, device: int) -> None:
        self._store = store
        with store.lock:
            arrays: dict[State, DeviceArray] = store.hold(graph.states, DeviceMemory(device))
            assert isinstance(store.memory, DeviceMemory)
            self._memory = store.memory
        self._updated = [state.name for state in graph.updates]
        self.addresses = [arrays[state].address for state in graph.states]
        self.bytes = sum(array.bytes for array in arrays.values())
        self._kept = arrays

    @contextmanager
    def turn(self, stream: int) -> Iterator[None]:
        """Orders the work that is enqueued within the context on a stream of the current device:
        after all earlier runs on the store's states, and before all later ones."""
        with self._store.lock, self._memory.turn(stream):
            yield

    def unchanged(self) -> AbstractContextManager[None]:
        """Within the context no other run begins; at its end the states have their old values
        again."""
        return self._store.unchanged(self._updated)
