"""What NCCL is asked for, by a stand-in for CuPy; tests/cuda/test_gpu_ranks.py has the real one."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from minidnn.distributed import DistributedError, RankInfo

from .test_watch import free_port

ID = bytes(range(100, 228))


class Event:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def record(self, stream: Any) -> None:
        self.log.append(("record", self, stream.ptr))


class Stream(SimpleNamespace):
    def wait_event(self, event: Event) -> None:
        self.log.append(("wait", event, self.ptr))

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Device:
    def __init__(self, index: int) -> None:
        self.id = index

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class Communicator:
    """As CuPy 14 declares it: ``NcclCommunicator(int ndev, bytes commId, int rank)``."""

    def __init__(self, size: int, unique: bytes, rank: int) -> None:
        assert type(unique) is bytes and len(unique) == 128
        self.given = size, unique, rank
        self.log = LOG

    def allReduce(self, source: int, to: int, count: int, kind: int, op: int, stream: int) -> None:
        self.log.append(("sum", source, to, count, kind, op, stream))

    def abort(self) -> None:
        self.log.append("abort")


LOG: list[Any] = []


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    LOG.clear()
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which watches set
    main = Stream(ptr=1, log=LOG)
    nccl = ModuleType("cupy.cuda.nccl")
    nccl.__dict__.update(
        available=True,
        get_unique_id=lambda: ID,
        get_version=lambda: 22707,
        NcclCommunicator=Communicator,
        NcclError=RuntimeError,
        groupStart=lambda: LOG.append("start"),
        groupEnd=lambda: LOG.append("end"),
        **{"NCCL_SUM": 0, "NCCL_FLOAT32": 7, "NCCL_BFLOAT16": 9, "NCCL_FLOAT64": 8},
    )
    cuda = ModuleType("cupy.cuda")
    cuda.__dict__.update(
        nccl=nccl,
        Device=Device,
        Stream=lambda non_blocking: Stream(ptr=2, log=LOG),
        get_current_stream=lambda: main,
        runtime=SimpleNamespace(getDeviceCount=lambda: 2),
    )
    found = ModuleType("cupy")
    found.__dict__.update(cuda=cuda)
    for name, module in (("cupy", found), ("cupy.cuda", cuda), ("cupy.cuda.nccl", nccl)):
        monkeypatch.setitem(sys.modules, name, module)
    return found


def joined() -> list[Any]:
    """Two ranks, as threads."""
    from minidnn.distributed.group import NcclGroup

    port, found = free_port(), dict[int, Any]()

    def join(rank: int) -> None:
        found[rank] = NcclGroup(RankInfo(rank, 2, rank, "127.0.0.1", port))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    return [found[rank] for rank in (0, 1)]


def test_sums_begin_behind_the_program_and_are_one_launch(cupy: Any) -> None:
    groups = joined()
    try:
        assert [group._ranks.given for group in groups] == [(2, ID, 0), (2, ID, 1)]
        LOG.clear()
        ready, done = Event(LOG), Event(LOG)
        groups[1].begin([(16, 32, 5, "float32"), (48, 64, 7, "bfloat16")], ready, done)
        assert [
            ("record", ready, 1),
            ("wait", ready, 2),
            "start",
            ("sum", 16, 32, 5, 7, 0, 2),
            ("sum", 48, 64, 7, 9, 0, 2),
            "end",
            ("record", done, 2),
        ] == LOG
    finally:
        for group in groups:
            group.watch.leave()


def test_a_rank_that_raises_lets_its_gpu_go(cupy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    groups = joined()
    for group in groups:
        group.watch.leave()  # so that nobody ends this process
    LOG.clear()
    groups[0].watch._raised(ValueError, ValueError("its own"), None)
    assert set(LOG) == {"abort"}  # also by the other's, which is in the same process
    assert "its own" in capsys.readouterr().err


@pytest.mark.parametrize("visible", [None, "3"])
def test_one_gpu_that_is_visible_is_the_ranks_own(
    cupy: Any, visible: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    from minidnn.distributed.group import NcclGroup

    if visible is None:
        with pytest.raises(DistributedError, match="local rank 1 has no GPU: there are 1; valid"):
            NcclGroup(RankInfo(1, 2, 1, "127.0.0.1", free_port()))
        return
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    groups = joined()
    assert [group.place.local_rank for group in groups] == [0, 0]
    for group in groups:
        group.watch.leave()


def test_without_nccl_it_says_what_to_install(cupy: Any) -> None:
    from minidnn.distributed.group import NcclGroup

    cupy.cuda.nccl.available = False
    with pytest.raises(DistributedError, match="pip install nvidia-nccl-cu13"):
        NcclGroup(RankInfo(0, 2, 0, "127.0.0.1", free_port()))
