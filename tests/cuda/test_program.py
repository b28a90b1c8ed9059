"""Which of a program's instances is asked what, without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minidnn import layers as L
from minidnn.backends.cuda import captured, memory, prepare, timing
from minidnn.backends.cuda.arrays import ArrayLibrary, CallerArray
from minidnn.backends.cuda.constants import Constants
from minidnn.backends.cuda.program import CudaProgram
from tests.cuda.cards import H200

from .greedy import be_greedy, least

SHAPE = (2, 16, 8, 8)
NETWORK = L.Sequential(L.MaxPool2d(3, 1, 1), L.Softmax(1))


class FakeInstance:
    """Keeps of its launches whether all that is given is copied."""

    def __init__(self, *given: Any) -> None:
        self.lock, self.done = threading.Lock(), SimpleNamespace(ptr=0)
        self.launches: list[bool] = []
        self.idle = False

    def launch(self, given: Any, results: Any, stream: int, apart: bool) -> None:
        self.launches.append(not apart)

    def is_idle(self) -> bool:
        return self.idle


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> CudaProgram:
    be_greedy(monkeypatch)
    monkeypatch.setattr(Constants, "upload", lambda self: self.bytes)
    monkeypatch.setattr(Constants, "address", 0)
    monkeypatch.setattr(captured, "Instance", FakeInstance)
    nothing: Callable[..., None] = lambda *given: None  # noqa: E731
    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        eventRecord=nothing,
        streamWaitEvent=nothing,
        streamSynchronize=nothing,
        CUDARuntimeError=RuntimeError,
    )
    cuda = SimpleNamespace(runtime=runtime, driver=SimpleNamespace(CUDADriverError=RuntimeError))
    for module in (memory, captured, prepare):
        monkeypatch.setattr(module, "cupy", lambda: SimpleNamespace(cuda=cuda), raising=False)
    monkeypatch.setattr(captured, "_stream_of", lambda given, device: 0)
    plan, tasks, _ = least(NETWORK, SHAPE, "float32")
    return CudaProgram(plan, tasks, 0, H200, "quick", None)


def test_the_instance_that_was_given_the_inputs_is_timed(
    made: CudaProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that has never had any: times on zeros are others."""
    timed: list[Any] = []

    def seconds(instance: Any) -> list[float]:
        timed.append(instance)
        return [0.5] * len(made.prepared.tasks)

    monkeypatch.setattr(timing, "seconds_of_tasks", seconds)
    for stream in (5, 6):
        made.run_on(stream, [0x1000], [0x2000])
    idle: Any = made._instances[6]
    idle.idle = True
    found = made.seconds_of_nodes([np.zeros(SHAPE, np.float32)], [])
    assert set(found.values()) == {0.5} and len(found) == len(made.plan.graph.nodes)
    assert timed == [idle] == [made._instances[0]]
    assert idle.launches == [False, True], "the second time inputs were copied"


class FakeLibrary(ArrayLibrary):
    """Works on a stream of its own; NumPy on none."""

    def __init__(self, stream: int | None) -> None:
        self.is_host = stream is None
        self._stream = stream

    def stream(self, device: int) -> int:
        assert self._stream is not None
        return self._stream


@pytest.mark.parametrize(
    ("streams", "wanted"),
    [
        ((7, 7), ["launch 7"]),
        ((7, None), ["launch 7"]),
        ((7, 8), ["7 after 8", "launch 7", "8 after 7"]),
        ((7, 9, 8), ["7 after 8", "7 after 9", "launch 7", "8 after 7", "9 after 7"]),
    ],
)
def test_streams_of_several_libraries_wait_for_each_other(
    streams: tuple[int | None, ...],
    wanted: list[str],
    made: CudaProgram,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else what one library still writes would be read, and what it takes again be written."""
    done: list[str] = []
    recorded: dict[int, int] = {}
    events = iter(range(100, 200))
    runtime = captured.cupy().cuda.runtime

    def record(event: int, stream: int) -> None:
        recorded[event] = stream

    def wait(stream: int, event: int) -> None:
        done.append(f"{stream} after {recorded[event]}")

    cuda = SimpleNamespace(
        runtime=SimpleNamespace(
            **{**vars(runtime), "eventRecord": record, "streamWaitEvent": wait}
        ),
        Event=lambda **given: SimpleNamespace(ptr=next(events)),
    )
    monkeypatch.setattr(captured, "cupy", lambda: SimpleNamespace(cuda=cuda))
    given = [CallerArray(0x1000 * i, FakeLibrary(stream), None) for i, stream in enumerate(streams)]
    monkeypatch.setattr(captured, "read", lambda slot, array, device: array)
    monkeypatch.setattr(captured, "_stream_of", lambda given, device: streams[0])
    monkeypatch.setattr(made, "_inputs", [None] * len(given))
    monkeypatch.setattr(made, "_outputs", [])
    monkeypatch.setattr(made, "_enqueue", lambda *given: done.append(f"launch {given[2]}"))
    made.call(given, None)
    assert done == wanted
