"""Ranks with a GPU each, over NCCL by CuPy's binding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minidnn.distributed.faults import DistributedError
from minidnn.distributed.place import RankPlace
from minidnn.distributed.watch import RankWatch
from minidnn.runtime.store import Store

_NCCL_TYPES = {
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "float16": "NCCL_FLOAT16",
    "bfloat16": "NCCL_BFLOAT16",
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
}


class NcclGroup:
    """Ranks that add up in their GPUs' memory, on a stream behind the runs that made the states.

    No rank waits for a collective operation on the host: the next run waits on the GPU.  They are
    not part of the captured graphs, so that a rank's end cannot leave a graph that waits for ever.
    """

    def __init__(self, place: RankPlace) -> None:
        try:
            import cupy
            from cupy.cuda import nccl  # no attribute before it is imported
        except ImportError as error:
            raise DistributedError(
                "distributed=True on a GPU needs CuPy: pip install 'minidnn[cuda]'"
            ) from error
        if not nccl.available:
            raise DistributedError(
                "distributed=True on a GPU needs NCCL, which CuPy does not find: pip install "
                "nvidia-nccl-cu13"
            )
        count = cupy.cuda.runtime.getDeviceCount()
        if place.local_rank >= count:
            raise DistributedError(
                f"local rank {place.local_rank} has no GPU: there are {count}; valid is one "
                "process for each"
            )
        self.place = place
        self._nccl = nccl
        self._device = cupy.cuda.Device(place.local_rank)
        unique = [int(each) for each in nccl.get_unique_id()] if place.rank == 0 else None
        self.watch = RankWatch(place, unique)
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._numbers = cupy
            unique_id = bytes(self.watch.told)
            self._ranks = nccl.NcclCommunicator(place.size, unique_id, place.rank)

    def add_up(self, store: Store, names: Sequence[str]) -> None:
        with self._enqueued(store, names) as states:
            for address, count, kind in states:
                self._ranks.allReduce(
                    address, address, count, kind, self._nccl.NCCL_SUM, self._stream.ptr
                )

    def take_over(self, store: Store, names: Sequence[str]) -> None:
        with self._enqueued(store, names) as states:
            for address, count, kind in states:
                self._ranks.broadcast(address, address, count, kind, 0, self._stream.ptr)

    def sum_of(self, numbers: Sequence[float]) -> list[float]:
        with self._device, self._stream:
            held = self._numbers.asarray(np.array([0.0, *numbers], np.float64))
            self._ranks.allReduce(
                *(held.data.ptr, held.data.ptr, held.size),
                *(self._nccl.NCCL_FLOAT64, self._nccl.NCCL_SUM, self._stream.ptr),
            )
            return [float(number) for number in held.get()[1:]]

    @contextmanager
    def _enqueued(self, store: Store, names: Sequence[str]) -> Iterator[list[tuple[int, int, int]]]:
        """Addresses, counts and types of states, behind the runs so far and before later ones; what
        is called meanwhile becomes one launch."""
        memory: Any = store.memory
        with store.lock, self._device, memory.turn(self._stream.ptr):
            states = []
            for held in store.kept(names):
                kind = getattr(self._nccl, _NCCL_TYPES[held.dtype])
                states.append((held.address, int(np.prod(held.shape, dtype=np.int64)), kind))
            self._nccl.groupStart()
            try:
                yield states
            finally:
                self._nccl.groupEnd()
