"""The pool under ThreadSanitizer (it found a thread that entered a round that was over)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from minidnn.backends.cpu.compilers.build_runner import FLAGS
from minidnn.backends.cpu.compilers.library import SOURCES
from minidnn.backends.cpu.compilers.toolchain import find_cc

HARNESS = Path(__file__).parent / "runner_race.c"


@pytest.mark.sampled(3)
@pytest.mark.early
@pytest.mark.parametrize(
    ("flags", "runs"),
    [
        ((), 1),
        pytest.param((), 40, marks=pytest.mark.full),
        pytest.param(("-DMD_NO_FUTEX",), 40, marks=pytest.mark.full),
    ],
)
def test_no_races(flags: tuple[str, ...], runs: int, tmp_path: Path) -> None:
    program = tmp_path / "race"
    command = [*find_cc().argv, "-g", "-O1", "-std=gnu11", "-fsanitize=thread", "-pthread", *flags]
    command += ["-I", str(SOURCES), "-o", str(program), str(HARNESS)]
    built = subprocess.run([*command, str(SOURCES / "pool.c")], capture_output=True, text=True)
    if built.returncode and "tsan" in built.stderr:
        pytest.skip("the C compiler has no ThreadSanitizer")
    assert built.returncode == 0, built.stderr
    for _ in range(runs):
        ended = subprocess.run([program], capture_output=True, text=True, timeout=60)
        if "unexpected memory mapping" in ended.stderr:
            pytest.skip("ThreadSanitizer does not run on this kernel")
        assert (ended.stdout, ended.returncode) == ("right\n", 0), ended.stderr[:5000]


def test_runner_compiles_without_warnings(tmp_path: Path) -> None:
    sources = sorted(map(str, SOURCES.glob("*.c")))
    strict = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion", "-Werror"]
    for extra in ([], ["-DMD_NO_FUTEX"]):
        command = [*find_cc().argv, *FLAGS, *strict, *extra, "-o", str(tmp_path / "x.so")]
        ended = subprocess.run([*command, *sources], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
