"""Process groups of ranks that train together, and their collective operations.

:class:`NcclGroup` is for a GPU for each rank, over NCCL by CuPy's binding; :class:`GlooGroup` is
for CPUs, over Gloo.  :func:`connect` makes the group of this process.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from minidnn.distributed.rank import (
    ConsensusCheck,
    DistributedError,
    RankInfo,
    RankWatch,
    find_rank,
)
from minidnn.graph.operators.ranks import set_process_group
from minidnn.runtime.store import Store

#: The most bytes of arrays that one collective operation sends together.
_BUCKET = 25 << 20
_SECONDS_TO_BE_TOLD = 3.0


class RankGroup(Protocol):
    """The ranks that train together.  All call the same functions in the same order, and run the
    same programs between these calls.

    Attributes:
        place: which rank this process is.
    """

    place: RankInfo

    @property
    def size(self) -> int:
        """The number of ranks."""

    def enter(self) -> None:
        """Begins work that needs all ranks; DistributedError if one has left."""

    def take_over(self, store: Store, names: Sequence[str]) -> None:
        """Broadcasts the states of these names from rank 0."""

    def sum_of(self, numbers: Sequence[float]) -> list[float]:
        """The sums of host numbers over all ranks; waits for all ranks."""

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """All-reduces host arrays in place, as ``graph.operators.ranks.ProcessGroup`` says."""

    def agree(self, text: str) -> None:
        """DistributedError unless all ranks give the same text; each text is compared once."""

    def describe(self) -> str:
        """The communication library, its version, and this rank's device."""


#: The groups of this process, by the kind of device.
_groups: dict[str, RankGroup] = {}


def connect(device: str | None) -> RankGroup:
    """Returns this process's group, connected: over NCCL if ``device`` is a GPU, else over Gloo.

    Groups persist: another trainer of this process gets the same one.  DistributedError if no
    variable says which rank this is, the others do not connect, or the library is missing.
    """
    kind = "cuda" if device is not None and device.startswith("cuda") else "cpu"
    group = _groups.get(kind)
    if group is None:
        make = NcclGroup if kind == "cuda" else GlooGroup
        group = _groups[kind] = make(find_rank())
    set_process_group(group)
    return group


class GlooGroup(ConsensusCheck):
    """Ranks on CPUs, which communicate over Gloo; it comes with PyTorch."""

    def __init__(self, place: RankInfo) -> None:
        super().__init__()
        try:
            import torch.distributed as dist
        except ImportError as error:
            raise DistributedError(
                "distributed=True on a CPU needs Gloo, which comes with PyTorch: pip install "
                "'minidnn[torch]'"
            ) from error
        self.place = place
        self.watch = RankWatch(place, _free_port(place.host) if place.rank == 0 else None)
        if place.host in ("127.0.0.1", "localhost"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if not dist.is_initialized():
            # With an address alone no rank would listen under torchrun, which has its own store.
            store = dist.TCPStore(place.host, self.watch.told, place.size, place.rank == 0)
            dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size)
        self._dist = dist

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """See :class:`minidnn.graph.operators.ranks.ProcessGroup`."""
        for bucket in _buckets(arrays):
            flat = np.concatenate([array.reshape(-1) for array in bucket])
            self._together(self._dist.all_reduce, flat)
            _spread(flat, bucket)

    def take_over(self, store: Store, names: Sequence[str]) -> None:
        self.enter()
        with store.lock:
            for bucket in _buckets([store[name] for name in names]):
                flat = np.concatenate([array.reshape(-1) for array in bucket])
                self._together(self._dist.broadcast, flat, 0)
                _spread(flat, bucket)

    def sum_of(self, numbers: Sequence[float]) -> list[float]:
        self.enter()
        # One number more, so that ranks wait for each other where there are none.
        flat = np.array([0.0, *numbers], np.float64)
        self._together(self._dist.all_reduce, flat)
        return [float(number) for number in flat[1:]]

    def describe(self) -> str:
        import torch

        return f"Gloo of PyTorch {torch.__version__}"

    def _together(self, operation: Callable[..., object], flat: np.ndarray, *more: int) -> None:
        """Runs a collective operation of Gloo in place on a flat array."""
        import torch

        try:
            operation(torch.from_numpy(flat), *more)
        except RuntimeError as error:
            # A rank is gone, and its error is on the way: the watch ends this process with it.
            time.sleep(_SECONDS_TO_BE_TOLD)
            raise DistributedError(f"rank {self.place.rank} lost another one: {error}") from error


def _free_port(host: str) -> int:
    """A free port for Gloo's own connections, which rank 0 sends to the others."""
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _buckets(arrays: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Groups arrays of one dtype, in their order, up to :data:`_BUCKET` bytes."""
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        bucket: list[np.ndarray] = []
        size = 0
        for array in arrays:
            if array.dtype != dtype:
                continue
            if bucket and size + array.nbytes > _BUCKET:
                yield bucket
                bucket, size = [], 0
            bucket.append(array)
            size += array.nbytes
        if bucket:
            yield bucket


def _spread(flat: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
    """Copies a flat array back to the arrays that it is the concatenation of."""
    begin = 0
    for array in arrays:
        array[...] = flat[begin : begin + array.size].reshape(array.shape)
        begin += array.size


_NCCL_TYPES = {
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "float16": "NCCL_FLOAT16",
    "bfloat16": "NCCL_BFLOAT16",
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
}


class NcclGroup(ConsensusCheck):
    """Ranks with a GPU each, which reduce in GPU memory over NCCL.

    Every collective is on one stream, so that all ranks have them in the same order.  Collectives
    that programs begin there become part of their captured CUDA graphs.  No rank waits for another
    on the host, so that the watch can end a process whose GPU waits for ever.
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
            # Slurm and others show each process only its own GPU.
            place = replace(place, local_rank=0)
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
        # Else the exit of the process would wait for collectives that this rank has begun.
        self.watch.released = self._ranks.abort

    @property
    def _version(self) -> str:
        number = self._nccl.get_version()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def begin(self, sums: Sequence[tuple[int, int, int, str]], ready: Any, done: Any) -> None:
        """Starts all-reduces between two events: see
        :class:`minidnn.backends.cuda.rank_sums.DeviceProcessGroup`."""
        ready.record(self._cupy.cuda.get_current_stream())
        self._stream.wait_event(ready)
        stream = self._stream.ptr
        self._nccl.groupStart()  # one launch for all
        try:
            for source, to, count, dtype in sums:
                kind = getattr(self._nccl, _NCCL_TYPES[dtype])
                self._ranks.allReduce(source, to, count, kind, self._nccl.NCCL_SUM, stream)
        finally:
            self._nccl.groupEnd()
        done.record(self._stream)

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """See :class:`minidnn.graph.operators.ranks.ProcessGroup`."""
        with self._device, self._stream:
            for array in arrays:
                device_array = self._cupy.asarray(array)
                kind = getattr(self._nccl, _NCCL_TYPES[array.dtype.name])
                address, stream = device_array.data.ptr, self._stream.ptr
                self._ranks.allReduce(
                    address, address, device_array.size, kind, self._nccl.NCCL_SUM, stream
                )
                array[...] = device_array.get()

    def take_over(self, store: Store, names: Sequence[str]) -> None:
        self.enter()
        memory: Any = store.memory
        stream = self._stream.ptr
        with store.lock, self._device, memory.turn(stream):
            self._nccl.groupStart()
            try:
                for state in store.kept(names):
                    kind = getattr(self._nccl, _NCCL_TYPES[state.dtype])
                    count = int(np.prod(state.shape, dtype=np.int64))
                    self._ranks.broadcast(state.address, state.address, count, kind, 0, stream)
            finally:
                self._nccl.groupEnd()

    def sum_of(self, numbers: Sequence[float]) -> list[float]:
        self.enter()
        # One number more, so that ranks wait for each other where there are none.
        sums = np.array([0.0, *numbers], np.float64)
        self.add([sums])
        return [float(number) for number in sums[1:]]

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
