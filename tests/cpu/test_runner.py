"""The native runner: every task once, the same bits on any number of threads, several runs."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minidnn.backends.cpu.compilers.library import NativeFunction
from minidnn.backends.cpu.execution.program import (
    BoundKernel,
    Group,
    NativeProgram,
    Pool,
    shared_pool,
)
from minidnn.backends.cpu.isa import AVX2
from minidnn.runtime.operand import Operand

from .conftest import run_python

TEAM = Path(__file__).parent / "team.h"
COUNT = """
MD_KERNEL(count) {  // one more for each task, and how often it was called
  uniform int32 * uniform counts = MD_OUT(int32, 0);
  for (uniform int t = md_begin; t < md_end; t++) counts[t]++;
}
MD_KERNEL(calls) {  // of each call its number of tasks, where it begins
  MD_OUT(int32, 0)[md_begin] += md_end - md_begin;
}
MD_KERNEL(slow) {
  uniform int32 * uniform counts = MD_OUT(int32, 0);
  for (uniform int t = md_begin; t < md_end; t++) {
    uniform int64 start = clock();
    while (clock() - start < 200000) {}
    counts[t]++;
  }
}
MD_KERNEL(add) {  // y[t] = a[t] + b[t]
  for (uniform int t = md_begin; t < md_end; t++)
    MD_OUT(float, 2)[t] = MD_IN(float, 0)[t] + MD_IN(float, 1)[t];
}
MD_KERNEL(through_scratch) {  // y[t] = 3 * x[t] by way of this thread's memory
  uniform float * uniform own = (uniform float * uniform)md_scratch;
  for (uniform int t = md_begin; t < md_end; t++) {
    own[t % 64] = MD_IN(float, 0)[t] * 2;
    MD_OUT(float, 1)[t] = own[t % 64] + MD_IN(float, 0)[t];
  }
}
MD_KERNEL(scan) {  // one task: y = cumulative sum of x
  uniform float sum = 0;
  for (uniform int i = 0; i < 64; i++) { sum += MD_IN(float, 0)[i]; MD_OUT(float, 1)[i] = sum; }
}
MD_KERNEL(halve) {
  for (uniform int t = md_begin; t < md_end; t++) MD_OUT(float, 0)[t] *= 0.5f;
}
"""


def address(array: np.ndarray) -> int:
    return array.ctypes.data


@given(
    threads=st.integers(1, 5),
    tasks=st.integers(0, 200),
    grain=st.integers(1, 70),
    regions=st.integers(1, 20),
)
def test_every_task_once(threads: int, tasks: int, grain: int, regions: int) -> None:
    counts = np.zeros(tasks + 1, np.int32)
    region = BoundKernel(_kernels()["count"], (Operand(0),), tasks, grain)
    NativeProgram([region] * regions, 1, pool=_pool(threads)).run([address(counts)])
    assert (counts[:-1] == regions).all() and counts[-1] == 0


@pytest.mark.parametrize("grain, first", [(1, 10), (4, 8), (7, 7), (20, 20), (40, 30)])
def test_chunks_become_smaller(grain: int, first: int) -> None:
    calls = np.zeros(60, np.int32)
    region = BoundKernel(_kernels()["calls"], (Operand(0),), 60, grain)
    NativeProgram([region], 1, pool=_pool(2)).run([address(calls)])
    for share in (calls[:30], calls[30:]):
        sizes = share[share > 0]
        assert sizes.sum() == 30 and sizes[0] == first
        assert (np.diff(sizes) <= 0).all()
        assert (sizes[:-1] % grain == 0).all() and (sizes[:-1] >= grain).all()


_cache: dict[object, object] = {}


def _pool(threads: int) -> Pool:
    return _cache.setdefault(threads, Pool(threads))  # type: ignore[return-value]


def _kernels() -> dict[str, NativeFunction]:
    if "kernels" not in _cache:
        from minidnn.backends.cpu.compilers.kernels import Unit, compile_units, prelude

        library = compile_units([Unit("runner_test", prelude(AVX2) + COUNT, AVX2)])[0]
        names = ("count", "calls", "slow", "add", "through_scratch", "scan", "halve")
        _cache["kernels"] = {name: library.kernel(name) for name in names}
    return _cache["kernels"]  # type: ignore[return-value]


def chain(threads: int, length: int = 40) -> tuple[NativeProgram, np.ndarray, np.ndarray]:
    """x, x + x, then alternately sums of the last two and halvings: each region needs the last."""
    kernels, n = _kernels(), 1000
    arena = np.zeros((length + 2, n), np.float32)
    rng = np.random.default_rng(1)
    arena[:2] = rng.standard_normal((2, n))
    expected = arena.copy()
    regions = []
    for i in range(2, length + 2):
        operands = tuple(Operand(0, row * n * 4) for row in (i - 2, i - 1, i))
        regions.append(BoundKernel(kernels["add"], operands, n, 1 + i % 7))
        regions.append(BoundKernel(kernels["halve"], (Operand(0, i * n * 4),), n, 64))
        expected[i] = (expected[i - 2] + expected[i - 1]) * np.float32(0.5)
    return NativeProgram(regions, 1, pool=_pool(threads)), arena, expected


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8])
def test_regions_see_what_came_before(threads: int) -> None:
    program, arena, expected = chain(threads)
    for _ in range(5):
        arena[2:] = np.nan
        program.run([address(arena)])
        np.testing.assert_array_equal(arena, expected)


def test_scratch_is_of_each_thread() -> None:
    x = np.arange(500, dtype=np.float32)
    for threads in (1, 2, 4):
        y = np.zeros_like(x)
        region = BoundKernel(_kernels()["through_scratch"], (Operand(0), Operand(1)), 500, 3)
        program = NativeProgram(
            [region] * 10, 2, scratch_bytes=256, pool=_pool(threads), guarded=True
        )
        program.run([address(x), address(y)])
        np.testing.assert_array_equal(y, 3 * x)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_groups_run_members_item_by_item(threads: int) -> None:
    """Per image: cumulative sum into memory of the thread, then added to the image."""
    images, size = 23, 64 * 4
    x = np.random.default_rng(2).standard_normal((images, 64)).astype(np.float32)
    out, private = np.zeros_like(x), np.zeros((threads, 64), np.float32)
    kernels = _kernels()
    image, result = Operand(0, 0, size), Operand(1, 0, size)
    own = Operand(2, 0, 0, size)
    group = Group(
        (
            BoundKernel(kernels["scan"], (image, own), 1),
            BoundKernel(kernels["add"], (image, own, result), 64),
        ),
        images,
    )
    halve = BoundKernel(kernels["halve"], (Operand(1),), images * 64, 8)
    program = NativeProgram([group, halve], 3, pool=_pool(threads))
    times = program.run_timed([address(x), address(out), address(private)])
    expected = (x + np.cumsum(x, 1, dtype=np.float32)) * np.float32(0.5)
    np.testing.assert_array_equal(out, expected)
    assert times.shape == (3,) and (times > 0).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_one_program_in_several_threads(threads: int) -> None:
    program, arena, expected = chain(threads, 60)
    failures: list[int] = []

    def work(number: int) -> None:
        own, mine = arena.copy(), expected
        for _ in range(20):
            own[2:] = np.nan
            program.run([address(own)])
            if not np.array_equal(own, mine):
                failures.append(number)

    _in_threads(work, 6)
    assert not failures


def test_several_programs_at_once() -> None:
    programs = [chain(threads, 30 + threads) for threads in (1, 2, 2, 3)]
    failures: list[int] = []

    def work(number: int) -> None:
        program, arena, expected = programs[number]
        for _ in range(30):
            arena[2:] = np.nan
            program.run([address(arena)])
            if not np.array_equal(arena, expected):
                failures.append(number)

    _in_threads(work, len(programs))
    assert not failures


def _in_threads(work, count: int) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_threads_start_stop_and_start_again() -> None:
    pool = Pool(3)
    assert pool.alive() == 0 and repr(pool) == "Pool(threads=3)"
    counts = np.zeros(64, np.int32)
    program = NativeProgram([BoundKernel(_kernels()["count"], (Operand(0),), 64)], 1, pool=pool)
    for round_number in range(1, 4):
        program.run([address(counts)])
        assert pool.alive() == 2 and (counts == round_number).all()
        pool.stop()
        assert pool.alive() == 0


@pytest.mark.alone
@pytest.mark.parametrize("threads", ["its own", "a team's"])
def test_two_threads_really_share_the_work(threads: str, team: int) -> None:
    """Two tasks of 20 ms that each note their thread's processor time."""
    counts = np.zeros(64, np.int32)
    pool = _pool(2) if threads == "its own" else Pool(2, team=team)
    program = NativeProgram([BoundKernel(_kernels()["slow"], (Operand(0),), 64)], 1, pool=pool)
    for _ in range(20):
        before, cpu = time.thread_time(), time.process_time()
        program.run([address(counts)])
        own, all_threads = time.thread_time() - before, time.process_time() - cpu
        if all_threads - own > 0.2 * all_threads:
            return
    pytest.fail("the second thread did nothing in 20 runs")


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The address of a function that is like an OpenMP library's ``GOMP_parallel``."""
    target = str(tmp_path_factory.mktemp("team") / "team.so")
    command = ["cc", "-shared", "-fPIC", "-pthread", "-x", "c", "-o", target, str(TEAM)]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(target)
    found = ctypes.cast(library.team, ctypes.c_void_p).value
    assert found is not None
    return found


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("spin_microseconds", [0, 100])
def test_a_pool_works_with_the_threads_of_a_team(
    team: int, threads: int, spin_microseconds: float
) -> None:
    pool = Pool(threads, spin_microseconds, team=team)
    counts = np.zeros(200, np.int32)
    program = NativeProgram(
        [BoundKernel(_kernels()["count"], (Operand(0),), 200, 3)] * 20, 1, pool=pool
    )
    for round_number in range(1, 50):
        program.run([address(counts)])
        assert (counts == 20 * round_number).all()
        assert pool.alive() == 0
    pool.stop()
    program.run([address(counts)])
    assert (counts == 20 * 50).all()


def test_a_child_of_a_fork_has_threads_of_its_own_instead_of_a_team(team: int) -> None:
    pool = Pool(3, team=team)
    counts = np.zeros(64, np.int32)
    program = NativeProgram([BoundKernel(_kernels()["count"], (Operand(0),), 64)], 1, pool=pool)
    program.run([address(counts)])
    with warnings.catch_warnings():
        # Python 3.12 and later warn about fork in a process with threads, which is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        program.run([address(counts)])
        os._exit(0 if (counts == 2).all() and pool.alive() == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    program.run([address(counts)])
    assert (counts == 2).all() and pool.alive() == 0


@pytest.mark.alone
def test_idle_threads_sleep() -> None:
    program, arena, _ = chain(4)
    program.run([address(arena)])
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02


@pytest.mark.alone
@pytest.mark.parametrize("flags", [(), ("-DMD_NO_FUTEX",)])
def test_threads_rest_when_asked_to(flags: tuple[str, ...]) -> None:
    """They would poll for ten seconds."""
    pool = Pool(3, spin_microseconds=1e7, build_flags=flags)
    counts = np.zeros(64, np.int32)
    program = NativeProgram([BoundKernel(_kernels()["count"], (Operand(0),), 64)], 1, pool=pool)
    for round_number in range(1, 6):
        program.run([address(counts)])
        pool.rest()
        assert (counts == round_number).all()
        time.sleep(0.02)
        before = time.process_time()
        time.sleep(0.1)
        assert time.process_time() - before < 0.05
    pool.stop()


@pytest.mark.parametrize("flags", ["()", "('-DMD_NO_FUTEX',)"])
def test_fork_after_use(flags: str) -> None:
    code = f"""
        import os, sys, threading
        import numpy as np
        from minidnn.backends.cpu.compilers.kernels import Unit, compile_units
        from minidnn.backends.cpu.compilers.kernels import prelude
        from minidnn.backends.cpu.isa import AVX2
        from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, Pool
        from minidnn.runtime.operand import Operand
        library = compile_units([Unit("runner_test", prelude(AVX2) + {COUNT!r}, AVX2)])[0]
        pool = Pool(3, build_flags={flags})
        slow = NativeProgram([BoundKernel(library.kernel("slow"), (Operand(0),), 64)], 1, pool=pool)
        counts = np.zeros(64, np.int32)
        slow.run([counts.ctypes.data])
        stop = False
        def busy():
            own = np.zeros(64, np.int32)
            while not stop: slow.run([own.ctypes.data])
        thread = threading.Thread(target=busy)
        thread.start()
        for _ in range(5):  # while another thread is inside a run
            pid = os.fork()
            if pid == 0:
                slow.run([counts.ctypes.data])
                ok = (counts == 2).all() and pool.alive() == 2
                pid = os.fork()
                if pid == 0:
                    slow.run([counts.ctypes.data])
                    os._exit(0 if (counts == 3).all() else 1)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os._exit(0 if ok and status == 0 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        stop = True
        thread.join()
        slow.run([counts.ctypes.data])
        assert (counts == 2).all()
        print("good")
        """
    # Python 3.12 and later warn about fork in a process with threads, which is what is tested.
    child = run_python(code, PYTHONWARNINGS="ignore::DeprecationWarning")
    out, err = child.communicate(timeout=60)
    assert (out, child.returncode) == ("good\n", 0), err


@pytest.mark.alone
def test_exit_while_threads_exist_is_clean_and_quick() -> None:
    code = f"""
        import time
        import numpy as np
        from minidnn.backends.cpu.compilers.kernels import Unit, compile_units
        from minidnn.backends.cpu.compilers.kernels import prelude
        from minidnn.backends.cpu.isa import AVX2
        from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, Pool
        from minidnn.runtime.operand import Operand
        library = compile_units([Unit("runner_test", prelude(AVX2) + {COUNT!r}, AVX2)])[0]
        counts = np.zeros(64, np.int32)
        count = BoundKernel(library.kernel("count"), (Operand(0),), 64)
        programs = [NativeProgram([count], 1, pool=Pool(n)) for n in (2, 4)]
        for program in programs: program.run([counts.ctypes.data])
        print(time.time())
        """
    child = run_python(code)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (0, "")
    assert time.time() - float(out) < 3


def test_condition_variables_work_like_futexes() -> None:
    pool = Pool(3, spin_microseconds=0, build_flags=("-DMD_NO_FUTEX",))
    counts = np.zeros(64, np.int32)
    program = NativeProgram(
        [BoundKernel(_kernels()["count"], (Operand(0),), 64)] * 20, 1, pool=pool
    )
    for round_number in range(1, 30):
        program.run([address(counts)])
        assert (counts == 20 * round_number).all()


def test_without_spinning() -> None:
    pool = Pool(3, spin_microseconds=0)
    counts = np.zeros(64, np.int32)
    program = NativeProgram(
        [BoundKernel(_kernels()["count"], (Operand(0),), 64)] * 20, 1, pool=pool
    )
    for round_number in range(1, 50):
        program.run([address(counts)])
        assert (counts == 20 * round_number).all()


def test_callers_floating_point_mode_does_not_matter(tmp_path: Path, team: int) -> None:
    """A caller that flushes denormals (as some libraries set) gets the same bits."""
    (tmp_path / "fp.c").write_text(
        "unsigned get(void) { return __builtin_ia32_stmxcsr(); }\n"
        "void set(unsigned mode) { __builtin_ia32_ldmxcsr(mode); }\n"
    )
    target = str(tmp_path / "fp.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", target, str(tmp_path / "fp.c")], check=True)
    fp = ctypes.CDLL(target)
    fp.set.argtypes = [ctypes.c_uint]
    x = np.full(1000, 1e-40, np.float32)
    region = BoundKernel(_kernels()["add"], (Operand(0), Operand(0), Operand(1)), 1000)
    mode = fp.get()
    for pool in (_pool(1), _pool(2), Pool(2, team=team)):
        y = np.zeros_like(x)
        program = NativeProgram([region], 2, pool=pool)
        bases = [address(x), address(y)]
        fp.set(mode | 0x8040)
        program.run(bases)
        after = fp.get()
        fp.set(mode)
        assert after & 0x8040 == 0x8040
        assert (y == np.float32(1e-40) * 2).all() and y[0] > 0


def test_shared_pool_is_one_per_thread_count(team: int) -> None:
    assert shared_pool(2) is shared_pool(2) is not shared_pool(2, team)
    assert shared_pool(1).threads == 1 and shared_pool().threads >= 1


@pytest.mark.alone
def test_cost_of_runs_and_regions() -> None:
    """Far under a microsecond and a few microseconds; the best of many, for machines are busy."""
    nothing = BoundKernel(_kernels()["count"], (Operand(0),), 2)
    counts = np.zeros(64, np.int32)
    one = NativeProgram([nothing], 1, pool=_pool(2))
    many = NativeProgram([nothing] * 1001, 1, pool=_pool(2))
    bases = [address(counts)]

    def best(program: NativeProgram) -> float:
        seconds = []
        for _ in range(100):
            start = time.perf_counter()
            program.run(bases)
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    single = best(one)
    assert single < 50e-6
    assert (best(many) - single) / 1000 < 1e-6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda k: BoundKernel(k, (Operand(2),), 1), "region 0 (r): Operand(slot=2, offset=0"),
        (lambda k: BoundKernel(k, (Operand(-1),), 1), "names none of the 2 slots"),
        (lambda k: BoundKernel(k, (), -1), "region 0 (r): tasks=-1 is not in 0..2**31-1"),
        (lambda k: BoundKernel(k, (), 1, 0), "region 0 (r): grain=0 is not in 1..2**31-1"),
        (
            lambda k: Group((BoundKernel(k, (Operand(0),) * 1025, 1, name="m"),), 2),
            "member m: 1025 operands, more than 1024",
        ),
        (lambda k: BoundKernel(k, (Operand(0, 0, 4),), 1), "strides are for members of a group"),
        (lambda k: BoundKernel(NativeFunction("x", 0, Path()), (), 1), "the kernel has no address"),
    ],
)
def test_wrong_regions_are_refused(make, message: str) -> None:
    from dataclasses import replace

    with pytest.raises(ValueError) as caught:
        NativeProgram([replace(make(_kernels()["count"]), name="r")], 2)
    assert message in str(caught.value)


def test_wrong_calls_are_refused() -> None:
    program = NativeProgram([], 2, pool=_pool(1))
    with pytest.raises(ValueError, match="1 addresses for 2 slots"):
        program.run([0])
    for threads in (0, -1, 2000):
        with pytest.raises(ValueError, match=f"threads={threads} is not between 1 and 1024"):
            Pool(threads)
    with pytest.raises(ValueError, match="scratch_bytes=-1: negative"):
        NativeProgram([], 0, scratch_bytes=-1)
