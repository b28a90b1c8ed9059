"""Kernels that are compiled while others are measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from minidnn import layers as L
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cuda import functions, prepare
from minidnn.backends.cuda.constants import Constants
from minidnn.backends.cuda.functions import LaunchLoader, Loaded
from minidnn.backends.cuda.kernels import Launch
from minidnn.errors import CompileError

from .cards import H200
from .greedy import be_greedy, least


def launch(number: int, shared_bytes: int = 0) -> Launch:
    source = KernelSource(f"k{number}", f"text {number}")
    return Launch(source, (1, 1, 1), (32, 1, 1), shared_bytes)


class Compiler:
    """Compiles names, each lot only when it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lots: list[list[str]] = []
        self.loads: list[int] = []
        self.may = [threading.Event(), threading.Event()]
        self.error: Exception | None = None
        monkeypatch.setattr(functions, "compile_kernels", self.compile)
        monkeypatch.setattr(functions, "load_compiled", self.load)
        monkeypatch.setattr(functions, "_MANY", 6)

    def compile(
        self, sources: Sequence[KernelSource], arch: str, jobs: int | None = None
    ) -> list[Any]:
        self.lots.append([source.name for source in sources])
        assert self.may[min(len(self.lots), 2) - 1].wait(10)
        if self.error is not None:
            raise self.error
        return [source.name for source in sources]

    def load(self, compiled: Sequence[tuple[Launch, Any]]) -> list[Loaded]:
        self.loads.append(len(compiled))
        assert all(one.source.name == kernel for one, kernel in compiled)
        return [Loaded(one, kernel, None) for one, kernel in compiled]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    return Compiler(monkeypatch)


def test_the_first_half_is_there_before_the_last_is_compiled(compiler: Compiler) -> None:
    some = [launch(i) for i in range(8)]
    load = LaunchLoader("sm_90")
    with ThreadPoolExecutor(1) as thread:
        load.begin([*some, some[0]], thread)
        compiler.may[0].set()
        assert [one.launch for one in load([some[3], some[0]])] == [some[3], some[0]]
        assert compiler.loads == [4]  # the whole wave at once
        compiler.may[1].set()
        other = launch(8)
        assert [one.launch for one in load([some[7], other])] == [some[7], other]
    assert compiler.lots == [["k0", "k1", "k2", "k3"], ["k4", "k5", "k6", "k7"], ["k8"]]
    assert compiler.loads == [4, 4, 1]


def test_few_are_compiled_at_once_and_what_is_there_not_again(compiler: Compiler) -> None:
    for event in compiler.may:
        event.set()
    first = LaunchLoader("sm_90")
    first([launch(0, 64), launch(1, 64)])
    load = LaunchLoader("sm_90", first)
    with ThreadPoolExecutor(1) as thread:
        load.begin([launch(0, 32), launch(1, 128), launch(2)], thread)
        assert compiler.lots == [["k0", "k1"], ["k1", "k2"]] and compiler.loads == [2, 2]
        assert len(load([launch(0, 32), launch(1, 128), launch(2)])) == 3
        load.begin([launch(2)], thread)
    assert len(compiler.lots) == 2


def test_nothing_is_called_off_that_was_begun(compiler: Compiler) -> None:
    """The thread is shut down before anybody has asked."""
    some = [launch(i) for i in range(8)]
    for event in compiler.may:
        event.set()
    load = LaunchLoader("sm_90")
    thread = ThreadPoolExecutor(1)
    load.begin(some, thread)
    load.wait()
    thread.shutdown(cancel_futures=True)
    assert [one.launch for one in load(some)] == some
    assert compiler.loads == [4, 4]


def test_a_plan_is_prepared_with_all_its_kernels(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network without contractions nothing asks for a kernel while the first half of them is
    compiled; the second half is not called off."""

    def slowly(sources: Sequence[KernelSource], arch: str, jobs: int | None = None) -> list[Any]:
        time.sleep(0.1)
        return compiler.compile(sources, arch, jobs)

    be_greedy(monkeypatch)
    monkeypatch.setattr(functions, "compile_kernels", slowly)
    monkeypatch.setattr(prepare, "LaunchLoader", LaunchLoader)
    monkeypatch.setattr(Constants, "lay_down", lambda self: self.bytes)
    monkeypatch.setattr(Constants, "address", 0)
    for event in compiler.may:
        event.set()
    pools = [layer for size in (2, 3, 5) for layer in (L.MaxPool2d(size, 1), L.Softmax(1))]
    plan, tasks, _ = least(L.Sequential(*pools), (2, 16, 16, 16), "float32")
    made = prepare.prepare(plan, tasks, H200, "quick", None)
    assert len(made.tasks) == len(tasks) and len(compiler.lots) == 2


def test_errors_reach_who_asks(compiler: Compiler) -> None:
    compiler.error = CompileError("a text is not valid")
    for event in compiler.may:
        event.set()
    some = [launch(i) for i in range(6)]
    with ThreadPoolExecutor(1) as thread:
        for count in (1, 6):
            load = LaunchLoader("sm_90")
            with pytest.raises(CompileError, match="a text is not valid"):
                load.begin(some[:count], thread)
                load(some[:1])
