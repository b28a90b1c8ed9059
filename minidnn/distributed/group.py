"""The ranks of a training: what they add up, and what they tell each other."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from minidnn.distributed.rank import ConsensusCheck, DistributedError, RankInfo, find_rank
from minidnn.distributed.watch import RankWatch
from minidnn.graph.operators.ranks import meet_in
from minidnn.runtime.store import Store

#: Arrays are sent together up to so many bytes.
_BUCKET = 25 << 20
_SECONDS_TO_BE_TOLD = 3.0


class RankGroup(Protocol):
    """The ranks that train together.  All call the same functions in the same order, and run the
    same programs between them."""

    place: RankInfo

    @property
    def size(self) -> int:
        """How many they are."""

    def enter(self) -> None:
        """Something begins for which all ranks are needed; DistributedError if one has left."""

    def take_over(self, store: Store, names: Sequence[str]) -> None:
        """Each of these states becomes that of rank 0."""

    def sum_of(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all ranks, of numbers of the host; it waits for all ranks."""

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """See :class:`minidnn.graph.operators.ranks.Meeting`."""

    def agree(self, text: str) -> None:
        """DistributedError unless all ranks say the same; a text is asked about once."""

    def describe(self) -> str:
        """The library that adds up, its version, and this rank's device."""


_joined: dict[str, RankGroup] = {}


def connect(device: str | None) -> RankGroup:
    """Finds the other ranks and joins them: by NCCL if ``device`` is a GPU, else by Gloo.

    They stay joined: another trainer of this process meets the same ranks.  DistributedError if
    nobody said which rank this is, the others do not come, or the library is not there.
    """
    kind = "cuda" if device is not None and device.startswith("cuda") else "cpu"
    group = _joined.get(kind)
    if group is None:
        place = find_rank()
        if kind == "cuda":
            from minidnn.distributed.nccl import NcclGroup

            group = _joined[kind] = NcclGroup(place)
        else:
            group = _joined[kind] = GlooGroup(place)
    meet_in(group)
    return group


class GlooGroup(ConsensusCheck):
    """Ranks on CPUs, over the sockets of Gloo, which comes with PyTorch."""

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
            # By address alone, torchrun would have nobody listen: it counts on its own store.
            found = dist.TCPStore(place.host, self.watch.told, place.size, place.rank == 0)
            dist.init_process_group("gloo", store=found, rank=place.rank, world_size=place.size)
        self._dist = dist

    @property
    def size(self) -> int:
        return self.place.size

    def enter(self) -> None:
        self.watch.enter()

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """See :class:`minidnn.graph.operators.ranks.Meeting`."""
        for some in _buckets(arrays):
            flat = np.concatenate([array.reshape(-1) for array in some])
            self._together(self._dist.all_reduce, flat)
            _spread(flat, some)

    def take_over(self, store: Store, names: Sequence[str]) -> None:
        self.enter()
        with store.lock:
            for arrays in _buckets([store[name] for name in names]):
                flat = np.concatenate([array.reshape(-1) for array in arrays])
                self._together(self._dist.broadcast, flat, 0)
                _spread(flat, arrays)

    def sum_of(self, numbers: Sequence[float]) -> list[float]:
        self.enter()
        # Without any number, too, all ranks wait.
        flat = np.array([0.0, *numbers], np.float64)
        self._together(self._dist.all_reduce, flat)
        return [float(number) for number in flat[1:]]

    def describe(self) -> str:
        import torch

        return f"Gloo of PyTorch {torch.__version__}"

    def _together(self, operation: Callable[..., object], flat: np.ndarray, *more: int) -> None:
        import torch

        try:
            operation(torch.from_numpy(flat), *more)
        except RuntimeError as error:
            # A partner is gone, and why is on its way: the watch ends this process with it.
            time.sleep(_SECONDS_TO_BE_TOLD)
            raise DistributedError(f"rank {self.place.rank} lost another one: {error}") from error


def _free_port(host: str) -> int:
    """A port for the library's own connections, which rank 0 tells the others."""
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _buckets(arrays: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """The arrays in their order, those of one dtype together, up to a number of bytes."""
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
    begin = 0
    for array in arrays:
        array[...] = flat[begin : begin + array.size].reshape(array.shape)
        begin += array.size
