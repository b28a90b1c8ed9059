"""Several runs in one graph, with a runtime that keeps graphs in Python and memory on the host."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minidnn.backends.cuda import repeated as module
from minidnn.backends.cuda import replay
from minidnn.backends.cuda.arrays import (
    CUPY,
    DEVICE_TO_DEVICE,
    HOST_TO_DEVICE,
    NUMPY,
    ArraySlot,
    CallerArray,
)
from minidnn.backends.cuda.block import Block
from minidnn.backends.cuda.captured import CapturedProgram
from minidnn.backends.cuda.memory import Limit
from minidnn.backends.cuda.repeated import Repeated, bytes_beside
from minidnn.backends.cuda.table import CudaTable
from minidnn.errors import OutOfMemoryError
from minidnn.runtime.operand import Operand

COUNT = 3


class FakeRuntime:
    """Work that is started is done at once, or becomes part of the graph that is captured."""

    streamCaptureModeRelaxed = 2

    def __init__(self) -> None:
        self.captured: list[Callable[[], object]] | None = None
        self.copies: list[tuple[int, int]] = []

    def start(self, work: Callable[[], object]) -> None:
        if self.captured is None:
            work()
        else:
            self.captured.append(work)

    def memcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        self.copies.append((size, kind))
        self.start(lambda: ctypes.memmove(to, source, size))

    def streamBeginCapture(self, stream: int, mode: int) -> None:
        self.captured = []

    def streamEndCapture(self, stream: int) -> list[Callable[[], object]]:
        found, self.captured = self.captured, None
        assert found is not None
        return found

    def graphInstantiate(self, graph: list[Callable[[], object]]) -> int:
        self.graph = graph
        return 8

    def graphLaunch(self, executable: int, stream: int) -> None:
        assert executable == 8
        for work in self.graph:
            work()

    def graphUpload(self, executable: int, stream: int) -> None: ...
    def graphDestroy(self, graph: object) -> None: ...
    def graphExecDestroy(self, executable: int) -> None: ...


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    made = FakeRuntime()

    class Stream:
        ptr = 5

        def __init__(self, non_blocking: bool) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...
        def synchronize(self) -> None: ...

    cuda = SimpleNamespace(runtime=made, Stream=Stream)
    monkeypatch.setattr(replay.driver, "captured", lambda stream: (7, [1]))
    for one in (module, replay):
        monkeypatch.setattr(one, "cupy", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(module, "allocated", lambda size, what: Memory(size))
    return made


class Memory:
    def __init__(self, size: int) -> None:
        self.array = np.full(size + 256, 0xFF, np.uint8)
        self.ptr = self.array.ctypes.data + -self.array.ctypes.data % 256


def at(address: int, count: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


class Row:
    """Computes with floats: y = x + step * state, state += sum(x), in memory that it is told."""

    def __init__(self, runtime: FakeRuntime, size: int) -> None:
        self.runtime, self.size = runtime, size

    def bind(self, bases: Sequence[int]) -> Callable[[], None]:
        values, x, step, y, _, state, _ = bases

        def compute() -> None:
            kept = at(values, self.size)
            kept[:] = at(x, self.size) + at(step, 1) * at(state, 1)
            at(state, 1)[:] += at(x, self.size).sum()
            at(y, self.size)[:] = kept

        return lambda: self.runtime.start(compute)


def table_of(runtime: FakeRuntime, size: int) -> CudaTable:
    """Of two inputs, what a row makes of them, and a copy of the second input."""
    block = Block(4 * size, 4 * size + 3 * 256, (256, 512), (768, 1024), {})
    copies = ((Operand(4), Operand(2), 4),)
    rows: Any = ((Row(runtime, size),),)
    return CudaTable(rows, block, (4 * size, 4), (4 * size, 4), copies)


def given(array: np.ndarray, on_host: bool) -> CallerArray:
    kind, library = (HOST_TO_DEVICE, NUMPY) if on_host else (DEVICE_TO_DEVICE, CUPY)
    return CallerArray(array.ctypes.data, library, array, kind)


@pytest.mark.parametrize("size", [5, 2000])  # a small input and one that is copied by itself
@pytest.mark.parametrize("on_host", [True, False])
def test_runs_follow_each_other_in_a_launch(size: int, on_host: bool, runtime: FakeRuntime) -> None:
    table, values, state = table_of(runtime, size), Memory(4 * size), Memory(4)
    at(state.ptr, 1)[:] = 10
    made = Repeated(table, COUNT, values.ptr, [state.ptr], 0)
    assert made.bytes == COUNT * 2 * (256 + -(-4 * size // 256) * 256) == bytes_beside(table, COUNT)
    assert at(state.ptr, 1)[0] == 10, "capturing runs nothing"
    random, expected = np.random.default_rng(0), np.float32(10)
    slots = [ArraySlot("y", (1, size), "float32", 4 * size), ArraySlot("z", (), "float32", 4)]
    for _ in range(2):
        xs = [random.integers(0, 9, size).astype(np.float32) for _ in range(COUNT)]
        steps = [np.array(number, np.float32) for number in (1, 2, 3)]
        runtime.copies.clear()
        calls = [[given(x, on_host), given(step, True)] for x, step in zip(xs, steps, strict=True)]
        y, z = made.results(made.launch(calls, 6), slots)
        assert (y.shape, z.shape) == ((COUNT, 1, size), (COUNT,))
        for x, step, found, copied in zip(xs, steps, y, z, strict=True):
            np.testing.assert_array_equal(found[0], x + step * expected)
            assert copied == step
            expected += x.sum()
        assert at(state.ptr, 1)[0] == expected
        # Small ones on the host at once, others one by one; and all results at once.
        assert len(runtime.copies) == (1 if on_host and size == 5 else COUNT) + 1 + 1


class Program(CapturedProgram):
    def __init__(self, table: CudaTable, limit: Limit | None) -> None:
        self.device, self._limit, self.table = 0, limit, table
        self._states: Any = SimpleNamespace(addresses=[0])
        self._constants: Any = SimpleNamespace(bytes=100, address=0)
        self._instances: Any = {None: SimpleNamespace(begin=0)}
        self._repeated, self._lock = {}, threading.Lock()


@contextmanager
def nothing() -> Any:
    yield


def test_the_limit_holds_for_inputs_and_outputs(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minidnn.backends.cuda import captured

    monkeypatch.setattr(captured, "on_device", lambda index: nothing())
    monkeypatch.setattr(captured, "told", nothing)
    table = table_of(runtime, 5)
    beside, values = COUNT * 4 * 256, 100 + table.block.own_bytes
    message = f"a limit; 3 runs in a launch take {values + beside} bytes, of which .* are {beside}"
    with pytest.raises(OutOfMemoryError, match=message):
        Program(table, Limit(values + beside - 1, "a limit")).repeat(COUNT)
    program = Program(table, Limit(values + beside, "a limit"))
    program.repeat(COUNT)
    assert list(program._repeated) == [COUNT]
