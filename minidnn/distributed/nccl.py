"""Ranks with a GPU each, over NCCL by CuPy's binding."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minidnn.distributed.rank import ConsensusCheck, DistributedError, RankInfo
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


class NcclGroup(ConsensusCheck):
    """Ranks that add up in their GPUs' memory.

    Every operation is on one stream, so that all ranks have them in the same order.  What programs
    begin there becomes part of their captured graphs.  No rank waits for another on the host, so
    that the watch can end a process whose GPU waits for ever.
    """

    def __init__(self, place: RankInfo) -> None:
        super().__init__()
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
        if count == 1 and "CUDA_VISIBLE_DEVICES" in os.environ:
            place = replace(place, local_rank=0)  # Slurm and others show each process its own alone
        if place.local_rank >= count:
            raise DistributedError(
                f"local rank {place.local_rank} has no GPU: there are {count}; valid is one "
                "process for each"
            )
        self.place = place
        self._cupy = cupy
        self._nccl = nccl
        self._device = cupy.cuda.Device(place.local_rank)
        unique = nccl.get_unique_id().hex() if place.rank == 0 else None
        self.watch = RankWatch(place, unique)
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
            unique_id = bytes.fromhex(self.watch.told)
            try:
                self._ranks = nccl.NcclCommunicator(place.size, unique_id, place.rank)
            except nccl.NcclError as error:
                raise DistributedError(
                    f"rank {place.rank}: NCCL {self._version} joins no {place.size} ranks: {error}"
                ) from error
        # Else the end of the process would wait for what this rank has begun.
        self.watch.released = self._ranks.abort

    @property
    def size(self) -> int:
        return self.place.size

    @property
    def _version(self) -> str:
        number = self._nccl.get_version()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def enter(self) -> None:
        self.watch.enter()

    def begin(self, sums: Sequence[tuple[int, int, int, str]], ready: Any, done: Any) -> None:
        """See :class:`minidnn.backends.cuda.rank_sums.DeviceMeeting`."""
        ready.record(self._cupy.cuda.get_current_stream())
        self._stream.wait_event(ready)
        stream = self._stream.ptr
        self._nccl.groupStart()  # they become one launch
        try:
            for source, to, count, dtype in sums:
                kind = getattr(self._nccl, _NCCL_TYPES[dtype])
                self._ranks.allReduce(source, to, count, kind, self._nccl.NCCL_SUM, stream)
        finally:
            self._nccl.groupEnd()
        done.record(self._stream)

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """See :class:`minidnn.graph.operators.ranks.Meeting`."""
        with self._device, self._stream:
            for array in arrays:
                held = self._cupy.asarray(array)
                kind = getattr(self._nccl, _NCCL_TYPES[array.dtype.name])
                at, stream = held.data.ptr, self._stream.ptr
                self._ranks.allReduce(at, at, held.size, kind, self._nccl.NCCL_SUM, stream)
                array[...] = held.get()

    def take_over(self, store: Store, names: Sequence[str]) -> None:
        self.enter()
        memory: Any = store.memory
        stream = self._stream.ptr
        with store.lock, self._device, memory.turn(stream):
            self._nccl.groupStart()
            try:
                for held in store.kept(names):
                    kind = getattr(self._nccl, _NCCL_TYPES[held.dtype])
                    count = int(np.prod(held.shape, dtype=np.int64))
                    self._ranks.broadcast(held.address, held.address, count, kind, 0, stream)
            finally:
                self._nccl.groupEnd()

    def sum_of(self, numbers: Sequence[float]) -> list[float]:
        self.enter()
        found = np.array([0.0, *numbers], np.float64)  # without any, too, all ranks wait
        self.add([found])
        return [float(number) for number in found[1:]]

    def describe(self) -> str:
        runtime = self._cupy.cuda.runtime
        name = runtime.getDeviceProperties(self._device.id)["name"].decode()
        bus = runtime.deviceGetPCIBusId(self._device.id)
        peers = sum(
            runtime.deviceCanAccessPeer(self._device.id, other)
            for other in range(runtime.getDeviceCount())
            if other != self._device.id
        )
        return f"NCCL {self._version}, {name} at {bus}, which reaches {peers} others of its machine"
