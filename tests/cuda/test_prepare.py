"""What is done once before a plan runs, without a GPU: constants, and what is built when."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minidnn import layers as L
from minidnn.backends.cuda import constants, memory
from minidnn.backends.cuda.constants import Constants, Data
from minidnn.backends.cuda.contraction import choice, tune
from minidnn.backends.cuda.contraction.algorithms import algorithms_for, least_milliseconds
from minidnn.backends.cuda.contraction.choice import Choice
from minidnn.backends.cuda.contraction.config import (
    AlgorithmConfig,
    ContractionExecutable,
    CudaAlgorithm,
)
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tune import Tuning
from minidnn.graph.ir import Constant
from minidnn.graph.types import TensorType
from minidnn.layers.parameter import LazyArray
from minidnn.runtime.arrays import to_bits
from tests.cuda.cards import H200

from .contractions import TILE
from .lowered import problems_of


class _HostMemory:
    """Host memory that takes copies as a device's would."""

    def __init__(self, size: int) -> None:
        self._bytes = np.full(size, 0xFF, np.uint8)  # what others have left there
        self.ptr = self._bytes.ctypes.data

    def __add__(self, offset: int) -> Any:
        def copy(source: int, size: int) -> None:
            assert offset + size <= self._bytes.size
            ctypes.memmove(self.ptr + offset, source, size)

        def back(target: int, size: int) -> None:
            assert offset + size <= self._bytes.size
            ctypes.memmove(target, self.ptr + offset, size)

        return SimpleNamespace(copy_from_host=copy, copy_to_host=back)

    def read(self, address: int, size: int) -> bytes:
        return self._bytes[address - self.ptr :][:size].tobytes()


@pytest.fixture
def device_memory(monkeypatch: pytest.MonkeyPatch) -> list[_HostMemory]:
    made: list[_HostMemory] = []

    def alloc(size: int) -> _HostMemory:
        made.append(_HostMemory(size))
        return made[-1]

    stream = SimpleNamespace(null=SimpleNamespace(synchronize=lambda: None))
    errors = SimpleNamespace(OutOfMemoryError=MemoryError)
    cuda = SimpleNamespace(alloc=alloc, Stream=stream, memory=errors)
    monkeypatch.setattr(constants, "cupy", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(memory, "cupy", constants.cupy)
    return made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as made:
        yield made


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(5 + 100 * seed, np.float32)


def test_constants_are_made_side_by_side_and_lie_apart(
    device_memory: list[_HostMemory], pool: ThreadPoolExecutor
) -> None:
    together = threading.Barrier(3, timeout=20)

    def make(seed: int) -> np.ndarray:
        if seed < 3:
            together.wait()
        return numbers(seed)

    dtypes = ("float16", "bfloat16", "float32")
    data = [Data(partial(make, i), dtypes[i % 3], (i,)) for i in range(9)]
    again = Data(lambda: pytest.fail("equal data are made twice"), "float32", (8,))
    laid = Constants([*data, again], pool)
    laid.upload()
    (memory,) = device_memory
    sizes = []
    for i, one in enumerate(data):
        expected = to_bits(numbers(i), dtypes[i % 3])
        assert memory.read(laid.address + laid.offset(one), expected.nbytes) == expected.tobytes()
        assert laid.address == memory.ptr and laid.offset(one) % 256 == 0
        sizes.append(-(-expected.nbytes // 256) * 256)
    assert laid.bytes == sum(sizes) and laid.offset(again) == laid.offset(data[8])
    whole = b"".join(
        to_bits(numbers(i), dtypes[i % 3]).tobytes().ljust(size, b"\0")
        for i, size in enumerate(sizes)
    )
    assert laid.copied().tobytes() == whole, "nothing of others is in it"


def test_an_error_in_a_constant_is_the_callers(
    device_memory: list[_HostMemory], pool: ThreadPoolExecutor
) -> None:
    def broken() -> np.ndarray:
        raise ValueError("no such weight")

    laid = Constants([Data(broken, "float32", (0,))], pool)
    with pytest.raises(ValueError, match="no such weight"):
        laid.upload()
    assert not device_memory


def test_threads_may_ask_for_one_constant_at_once() -> None:
    """While one computes it another may, too; both get it."""
    for _ in range(20):
        together = threading.Barrier(4, timeout=20)

        def draw() -> np.ndarray:
            time.sleep(0.001)
            return np.ones(3, np.float32)

        lazy = LazyArray(draw)
        value = Constant(TensorType((3,)), "w", lazy)

        def ask(_: int, value: Constant = value, together: Any = together) -> float:
            together.wait()
            return float(value.data.sum())

        with ThreadPoolExecutor(4) as asking:
            assert list(asking.map(ask, range(4))) == [3.0] * 4


# Choices: the names in ``choice`` that need a GPU are replaced.


class _Book:
    """What was done, in which order, and that nothing goes on beside a measurement."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ContractionProblem]] = []
        self.busy = 0
        #: Milliseconds that cuDNN's engines that compile may save, and do.
        self.gains: dict[ContractionProblem, float] = {}
        self._lock = threading.Lock()

    def builds(self, what: str, problem: ContractionProblem) -> None:
        with self._lock:
            self.busy += 1
        time.sleep(0.002)
        with self._lock:
            self.busy -= 1
            self.lines.append((what, problem))

    def measures(self, what: str, problem: ContractionProblem) -> None:
        assert self.busy == 0, f"something is built while {what} {problem.describe()}"
        self.lines.append((what, problem))

    def of(self, what: str) -> list[ContractionProblem]:
        return [problem for text, problem in self.lines if text == what]


def best(problem: ContractionProblem) -> AlgorithmConfig:
    """The form that the fakes find the fastest."""
    algorithm = algorithms_for(problem, H200)[0]
    engine = 7 if algorithm.kernel is None else algorithm.kernel.choices(problem, H200)[0]
    return AlgorithmConfig(algorithm, engine, ((1, 2),), 0, 0.5)


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Book:
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))
    made = _Book()

    def built(problem: ContractionProblem, config: AlgorithmConfig) -> ContractionExecutable:
        return ContractionExecutable(problem, config, None, None, None)  # type: ignore[arg-type]

    def certain(problem: ContractionProblem, tuning: Tuning) -> dict[CudaAlgorithm, Any]:
        made.builds("ahead", problem)
        return {CudaAlgorithm("convolution", 0): []}

    def everything(
        problem: ContractionProblem, own: Any, ahead: Any, tuning: Any
    ) -> list[ContractionExecutable]:
        made.builds("with ahead" if ahead else "everything", problem)
        return [built(problem, best(problem))]

    def own(problem: ContractionProblem, tuning: Tuning) -> list[ContractionExecutable]:
        made.measures("own", problem)
        return []

    def measured(
        problem: ContractionProblem, found: Any, tuning: Tuning
    ) -> Sequence[ContractionExecutable]:
        made.measures("measured", problem)
        return list(found)

    def core_of(problem: ContractionProblem, config: AlgorithmConfig, *rest: Any) -> Any:
        made.builds("core", problem)

    def gain(problem: ContractionProblem, fastest: ContractionExecutable, tuning: Tuning) -> float:
        return made.gains.get(problem, 0.0)

    def with_compiled(
        problem: ContractionProblem, ranked: Any, tuning: Tuning
    ) -> list[ContractionExecutable]:
        made.builds("compiled", problem)
        milliseconds = ranked[0].config.milliseconds - made.gains[problem]
        return [built(problem, replace(best(problem), milliseconds=milliseconds)), *ranked]

    runtime = SimpleNamespace(getDevice=lambda: 0, setDevice=lambda index: None)
    for name, value in {
        "certain": certain,
        "everything": everything,
        "own": own,
        "measured": measured,
        "core_of": core_of,
        "gain": gain,
        "with_compiled": with_compiled,
        "build": lambda problem, config, core, machine, load: built(problem, config),
        "gpu_lock": lambda device: nullcontext(),
        "cupy": lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)),
    }.items():
        monkeypatch.setattr(choice, name, value)
    monkeypatch.setattr(tune, "library_name", lambda: "cuDNN")
    monkeypatch.setattr(tune, "device_name", lambda index: "a GPU")
    monkeypatch.setattr(tune, "cupy", choice.cupy)
    return made


def problems(count: int) -> list[ContractionProblem]:
    layers = [L.Conv2d(64, 64, 1), L.ReLU()]
    for i in range(count - 1):
        layers += [L.Conv2d(64, 64, 3, padding=1, dilation=1 + i % 2), L.ReLU(), L.MaxPool2d(2)]
    found = []
    for size in (64, 48, 40, 36, 33):
        found += problems_of(L.Sequential(*layers[:8]), (8, 64, size, size), "float16")
    assert len(set(found)) >= count
    return list(dict.fromkeys(found))[:count]


def chosen(some: Sequence[ContractionProblem], tuned: str = "quick") -> tuple[Choice, Any]:
    tuning = Tuning(H200, tuned, 1 << 30, lambda launches: [])
    with choice.threads() as pool:
        made = Choice(some, tuning, pool)
        return made, made.made()


def test_nothing_is_built_while_something_is_measured(
    book: _Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN's engines for the first problems are built at once, all others once our kernels are
    measured, some at a time."""
    monkeypatch.setattr(choice, "_AT_ONCE", 4)
    some = problems(10)
    _, built = chosen(some)
    assert list(built) == some
    assert set(book.of("ahead")) == set(book.of("with ahead")) == set(some[:4])
    assert book.of("own") == book.of("measured") == some
    what = [text for text, _ in book.lines]
    assert what[:14] == ["ahead"] * 4 + ["own"] * 10
    assert what[14:22] == ["with ahead"] * 4 + ["measured"] * 4
    assert (
        what[22:] == (["everything"] * 4 + ["measured"] * 4) + ["everything"] * 2 + ["measured"] * 2
    )


def test_what_is_remembered_is_not_measured_again(book: _Book) -> None:
    some = problems(6)
    chosen(some[:4])
    book.lines.clear()
    made, built = chosen(some)
    assert {problem: one.config for problem, one in built.items()} == {p: best(p) for p in some}
    assert set(book.of("core")) == set(some[:4])
    assert book.of("measured") == some[4:]
    # Kernels of recipes that are not taken need not be there.
    few = set(chosen(some)[0].launches())
    assert few < set(made.launches())


def test_engines_that_compile_are_built_where_they_may_save_enough_of_all(book: _Book) -> None:
    """All take half a millisecond; the third, which comes ten times, may save much in all."""
    some = problems(4)
    book.gains = {some[1]: 0.4, some[2]: 0.04, some[3]: 0.01}
    plan = [*some, *[some[2]] * 9]
    _, built = chosen(plan)
    assert list(built) == some
    assert set(book.of("compiled")) == set(some[1:3]) and book.of("measured")[4:] == some[1:3]
    saved = [0.5 - (built[problem].config.milliseconds or 0.0) for problem in some]
    assert saved == pytest.approx([0.0, 0.4, 0.04, 0.0])
    book.lines.clear()
    chosen(plan)
    assert not book.of("compiled") and not book.of("measured")
    # A smaller plan, of which what was left out is more than a part of what all take.
    _, built = chosen([some[3], some[0]])
    assert book.of("compiled") == [some[3]]
    assert built[some[3]].config.milliseconds == pytest.approx(0.49)
    book.lines.clear()
    chosen([some[3]])
    assert not book.of("compiled")


def test_another_tuning_is_another_choice(book: _Book) -> None:
    some = problems(2)
    chosen(some)
    chosen(some, "exhaustive")
    assert book.of("measured") == some * 2


def test_forms_are_built_ahead_unless_a_kernel_of_ours_may_make_them_needless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (problem,) = problems_of(
        L.Sequential(L.BatchNorm2d(224), L.ReLU(), L.Conv2d(224, 128, 1, bias=False)),
        (128, 224, 56, 56),
        "float16",
    )
    tuning = Tuning(H200, "quick", 1 << 30, lambda launches: [])
    asked: list[CudaAlgorithm] = []

    def candidates(
        p: Any, algorithm: CudaAlgorithm, most: Any, tuning: Any, compiles: bool
    ) -> Iterator[Any]:
        assert not compiles
        asked.append(algorithm)
        yield AlgorithmConfig(algorithm, 3, (), 0, None), None

    monkeypatch.setattr(tune, "_candidates", candidates)
    monkeypatch.setattr(
        tune,
        "build",
        lambda problem, config, core, *rest: ContractionExecutable(
            problem, config, core, None, None
        ),
    )
    algorithms = [
        algorithm for algorithm in algorithms_for(problem, H200) if algorithm.kernel is None
    ]
    ahead = tune.certain(problem, tuning)
    assert ahead == {} == dict.fromkeys(asked)  # each needs a kernel before it
    floor = least_milliseconds(problem, CudaAlgorithm(TILE.name, len(problem.stages)), H200)
    slow = AlgorithmConfig(CudaAlgorithm(TILE.name, len(problem.stages)), 0, (), 0, 10 * floor)
    ours = ContractionExecutable(problem, slow, None, None, None)  # type: ignore[arg-type]
    found = tune.everything(problem, [ours], ahead, tuning)
    assert [one.config.algorithm for one in found[1:]] == algorithms == asked

    plain = replace(problem, before=(), before_vectors=())
    asked.clear()
    ahead = tune.certain(plain, tuning)
    assert list(ahead) == asked == [f for f in algorithms_for(plain, H200) if f.kernel is None]
    asked.clear()
    found = tune.everything(plain, [ours], ahead, tuning)
    assert [one.config.algorithm for one in found[1:]] == list(ahead)
    assert not asked  # nothing is built twice


def test_engines_that_compile_are_built_first_only_where_nothing_else_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = L.Conv2d(64, 64, 3, padding=1, bias=True)
    (problem,) = problems_of(L.Sequential(layer), (8, 64, 28, 28), "float16")
    tuning = Tuning(H200, "quick", 1 << 30, lambda launches: [])
    asked: list[bool] = []
    ready = True

    def candidates(
        p: Any, algorithm: CudaAlgorithm, most: Any, tuning: Any, compiles: bool
    ) -> Iterator[Any]:
        asked.append(compiles)
        if ready or compiles:
            yield AlgorithmConfig(algorithm, 7 if compiles else 3, (), 0, 1.0), None

    monkeypatch.setattr(tune, "_candidates", candidates)
    monkeypatch.setattr(
        tune,
        "build",
        lambda problem, config, core, *rest: ContractionExecutable(
            problem, config, core, None, None
        ),
    )
    ranked = tune.everything(problem, [], {}, tuning)
    assert {one.config.engine for one in ranked} == {3} and not any(asked)
    again = tune.with_compiled(problem, [*ranked * 4], tuning)
    assert [one.config.engine for one in again] == [3, 3, 7]
    ready = False
    assert {one.config.engine for one in tune.everything(problem, [], {}, tuning)} == {7}
    slow, fast = (
        ContractionExecutable(
            problem,
            AlgorithmConfig(CudaAlgorithm(TILE.name, 0), 0, (), 0, ms),
            None,  # type: ignore[arg-type]
            None,
            None,
        )
        for ms in (1.0, 1e-6)
    )
    assert [one.config.engine for one in tune.everything(problem, [slow], {}, tuning)] == [0]
    floor = min(least_milliseconds(problem, f, H200) for f in algorithms_for(problem, H200))
    assert tune.gain(problem, slow, tuning) == pytest.approx(1.0 - floor)
    assert tune.gain(problem, fast, tuning) == 0.0
    assert tune.gain(problem, slow, replace(tuning, tune="exhaustive")) == 0.0
    assert tune.gain(replace(problem, stages=()), slow, tuning) == 0.0
