"""Compiling where memory is short: what fits is taken, or it is told that nothing does."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.block import lay_out
from minidnn.backends.cuda.contraction import tune
from minidnn.backends.cuda.contraction.config import FIXED, ContractionExecutable, CudaAlgorithm
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tune import Tuning
from minidnn.backends.cuda.memory import LEFT_FREE
from minidnn.backends.cuda.program import CudaProgram
from minidnn.errors import MiniDNNWarning, OutOfMemoryError

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")
NETWORK = L.Conv2d(64, 64, 3, padding=1, bias=False)
SHAPE = (64, 64, 56, 56)
LARGE = (256, 64, 56, 56)
ROOM = 8 << 20
"""Bytes of workspace that there is room for."""
WANTED = 128 << 20
"""Bytes of workspace that the first choice takes at least: Winograd's on a map of that size take
220 MB."""
AGAIN = (
    r"no room for \d+ bytes of activations and workspace: .*; cuda:0 has \d+ bytes free, of "
    r"which \d+ may be taken, and algorithms are chosen again"
)
HOLDER = """
import sys
import cupy

runtime, left, kept = cupy.cuda.runtime, int(sys.argv[1]), []
size = runtime.memGetInfo()[0] - left
while size > 2 << 20:
    try:
        kept.append(runtime.malloc(size))
    except runtime.CUDARuntimeError:
        size //= 2
        continue
    size = runtime.memGetInfo()[0] - left
print("held", flush=True)
sys.stdin.read()
"""


FRESH = """
import minidnn as md
from minidnn import layers as L

try:
    md.compile(L.ReLU(), (2, 3, 4, 4), device="cuda")
except md.OutOfMemoryError as error:
    print("OutOfMemoryError:", error)
else:
    print("it fits")
"""


class Remembering:
    """A store in memory: choices that were made while there was room."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}

    def read(self, key: str) -> bytes | None:
        return self.entries.get(key)

    def put(self, key: str, data: bytes, *, label: str) -> None:
        self.entries[key] = data


@pytest.fixture(autouse=True)
def _most_workspace_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's fixed functions are chosen from, and what takes most workspace is the fastest."""
    raced = tune._raced

    def by_workspace(
        problem: ContractionProblem, found: list[ContractionExecutable], tuning: Tuning
    ) -> list[ContractionExecutable]:
        return sorted(raced(problem, found, tuning), key=lambda one: -one.workspace)

    monkeypatch.setattr(tune, "algorithms_for", lambda problem, machine: [CudaAlgorithm(FIXED, 0)])
    monkeypatch.setattr(tune, "_most", lambda problem, algorithm, tuned: None)
    monkeypatch.setattr(tune, "_raced", by_workspace)
    monkeypatch.setattr(tune, "_store", Remembering())


@pytest.fixture
def least() -> int:
    """Bytes that the network takes at least, compiled once where there is room for more."""
    exe = compiled(SHAPE)
    program = exe.program
    found = program.prepared.constants.bytes + lay_out(program.plan, {}).own_bytes
    assert program.bytes > found + WANTED, "the first choice is to take much workspace"
    check(exe, SHAPE)
    del exe, program
    used_bytes()
    return int(found)


def compiled(shape: tuple[int, ...]) -> Any:
    exe = md.compile(NETWORK, shape, device="cuda")
    assert isinstance(exe.program, CudaProgram)
    return exe


def check(exe: Any, shape: tuple[int, ...]) -> None:
    """The first and the last image are compared: the reference takes its time."""
    some = np.random.default_rng(0).standard_normal((8, *shape[1:]), np.float32)
    x = np.concatenate([some] * (shape[0] // 8))
    few = [0, shape[0] - 1]
    expected = md.compile(NETWORK, (2, *shape[1:]), device="reference")(x[few])
    result = exe(x)
    assert np.abs(result[few] - expected).max() < 5e-5 * np.abs(expected).max()


def used_bytes() -> int:
    """What is in use when all that nobody needs is given back."""
    gc.collect()
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    return int(pool.used_bytes())


@contextmanager
def only(size: int) -> Iterator[None]:
    """CuPy's pool gives so many bytes and no more."""
    pool = cupy.get_default_memory_pool()
    before = pool.get_limit()
    pool.set_limit(size=pool.total_bytes() + size)
    try:
        yield
    finally:
        pool.set_limit(size=before)


@contextmanager
def held_by_another(left: int) -> Iterator[None]:
    """Another process has all of the GPU's memory but so many bytes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(left)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield
    finally:
        try:
            process.communicate(timeout=60)  # ends its input, and so itself
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_what_fits_is_chosen_where_the_first_choice_does_not(least: int) -> None:
    before = used_bytes()
    with only(least + LEFT_FREE + ROOM):
        with pytest.warns(MiniDNNWarning, match=AGAIN) as warned:
            exe = compiled(SHAPE)
        assert sum(one.category is MiniDNNWarning for one in warned) == 1
        assert exe.program.bytes <= least + ROOM
        check(exe, SHAPE)
    del exe
    assert used_bytes() <= before


def test_what_does_not_fit_is_told_and_leaks_nothing(least: int) -> None:
    before = used_bytes()
    text = rf"may be taken; weights take \d+ and values with .* at least {least} are needed"
    with only(least // 2), pytest.warns(MiniDNNWarning, match=AGAIN):
        with pytest.raises(OutOfMemoryError, match=text) as caught:
            compiled(SHAPE)
        assert used_bytes() <= before, "the error that is still there keeps nothing"
    del caught
    check(compiled(SHAPE), SHAPE)


@pytest.mark.alone
def test_another_process_fills_the_gpu(least: int) -> None:
    """What fits beside it is right, what does not is told, and is right when it has ended."""
    before = used_bytes()
    with held_by_another(least + LEFT_FREE + WANTED // 2):
        with pytest.warns(MiniDNNWarning, match=AGAIN):
            exe = compiled(SHAPE)
        check(exe, SHAPE)
        del exe
        assert used_bytes() <= before
        text = r"^cuda:0 has \d+ bytes free, of which .* so at least \d+ are needed"
        with pytest.warns(MiniDNNWarning), pytest.raises(OutOfMemoryError, match=text):
            compiled(LARGE)
        assert used_bytes() <= before
    check(compiled(LARGE), LARGE)


@pytest.mark.alone
def test_a_process_that_finds_the_gpu_full_says_so(root: Path) -> None:
    """There is not even room for a context of CUDA's, which takes some hundred megabytes."""
    used_bytes()
    with held_by_another(64 << 20):
        command = [sys.executable, "-c", FRESH]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root)
    assert found.stdout.startswith("OutOfMemoryError: no room for "), found


def test_a_collector_of_cycles_destroys_a_program() -> None:
    """Objects in a cycle are finalized in any order: the event that a program waits for before its
    memory is given to others may go before it does."""
    x = cupy.ones((1, 64, 8, 8), cupy.float32)
    for _ in range(3):
        executable = md.compile(NETWORK, x.shape, device="cuda")
        cupy.asnumpy(executable(x))
        circle: list[Any] = [executable]
        circle.append(circle)
        del executable, circle
        assert gc.collect()
