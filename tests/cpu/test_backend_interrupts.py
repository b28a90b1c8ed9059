"""Ctrl-C, kill and fork in the middle of compiling or running: nothing hangs, nothing is left."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import MakeFake, processes_with, run_python, wait_until

full = pytest.mark.full

WAIT = "sleep 1062.5"

INTERRUPTED = """
    import os
    from tests.cpu.test_backend_faults import compiled, works
    try:
        compiled()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    os.environ["MINIDNN_ISPC"] = os.environ["REAL_ISPC"]
    os.environ.pop("CC", None)
    assert works(compiled())
    print("right")
    """


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def hang_in(stage: str, make_fake: MakeFake, tmp_path: Path, real_ispc: str) -> dict[str, str]:
    """Makes the compiler of a stage hang; the environment of a process that meets it."""
    environment = {"REAL_ISPC": real_ispc}
    if stage == "ispc":
        return environment | {"MINIDNN_ISPC": str(make_fake(f"{WAIT} & {WAIT}"))}
    compiler = tmp_path / "hanging-cc"
    what = {"runner": "-pthread", "link": "-lm"}[stage]
    compiler.write_text(
        f'#!/bin/sh\ncase " $* " in *" {what} "*) {WAIT} & {WAIT};; esac\nexec cc "$@"\n'
    )
    compiler.chmod(0o755)
    return environment | {"CC": str(compiler)}


def start_and_wait(
    code: str, temporary: Path, environment: dict[str, str]
) -> subprocess.Popen[str]:
    """The process, once its compiler hangs."""
    child = run_python(code, TMPDIR=str(temporary), **environment)
    assert wait_until(lambda: len(processes_with(WAIT)) >= 2 or child.poll() is not None, 60)
    assert child.poll() is None, child.communicate()
    return child


@pytest.mark.parametrize(
    "stage",
    ["ispc", *(pytest.param(stage, marks=pytest.mark.full) for stage in ("runner", "link"))],
)
def test_ctrl_c(
    stage: str,
    make_fake: MakeFake,
    cold_cache: Path,
    tmp_path: Path,
    temporary: Path,
    real_ispc: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends at once; the same process can compile right after it, and so can another."""
    monkeypatch.delenv("CC", raising=False)  # Or the other one looks for another compiler's files.
    environment = hang_in(stage, make_fake, tmp_path, real_ispc)
    child = start_and_wait(INTERRUPTED, temporary, environment)
    start = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert out == "interrupted\nright\n", err
    assert time.monotonic() - start < 20
    assert wait_until(lambda: not processes_with(WAIT))
    assert not list(temporary.iterdir()) and not list(cold_cache.rglob(".work-*"))
    environment = {"REAL_ISPC": real_ispc, "MINIDNN_ISPC": real_ispc}
    again = run_python(INTERRUPTED, MINIDNN_NO_COMPILE="1", **environment)
    assert again.communicate(timeout=30) == ("right\n", "")


def test_killed_while_compiling(
    make_fake: MakeFake, cold_cache: Path, tmp_path: Path, temporary: Path, real_ispc: str
) -> None:
    """The next process does not wait for the lock of one that is gone."""
    environment = hang_in("ispc", make_fake, tmp_path, real_ispc)
    environment["MINIDNN_COMPILE_TIMEOUT"] = "1"
    child = start_and_wait(INTERRUPTED, temporary, environment)
    child.kill()
    child.communicate(timeout=10)
    start = time.monotonic()
    again = run_python(INTERRUPTED, REAL_ISPC=real_ispc, MINIDNN_ISPC=real_ispc)
    assert again.communicate(timeout=60) == ("right\n", "")
    assert time.monotonic() - start < 30
    # Its hanging compilers end by themselves, 5 s after their limit: tests of commands wait for it.


@full
def test_ctrl_c_at_any_moment(cold_cache: Path, temporary: Path, real_ispc: str) -> None:
    """From the first import's end to the first result, with the real compilers."""
    code = """
        import os, time
        from tests.cpu.test_backend_faults import compiled, works
        print("ready", flush=True)
        try:
            while True:
                compiled()
        except KeyboardInterrupt:
            pass
        assert works(compiled())
        print("right")
        """
    for step in range(12):
        environment = {"MINIDNN_CACHE": str(cold_cache / str(step)), "TMPDIR": str(temporary)}
        child = run_python(code, MINIDNN_ISPC=real_ispc, **environment)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(0.1 * step)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        assert (out, err) == ("right\n", ""), step
        assert not list(temporary.iterdir()), step
        assert not list((cold_cache / str(step)).rglob(".work-*")), step
        assert not processes_with(str(temporary)), step


def test_ctrl_c_during_a_run() -> None:
    """The run ends first; its executable goes on working."""
    code = """
        import numpy as np
        from tests.cpu.test_backend_calls import compiled, draw
        exe, x = compiled(threads=2), draw(1)
        expected = exe(x)
        print("ready", flush=True)
        for _ in range(5):
            try:
                while True:
                    exe(x)
            except KeyboardInterrupt:
                np.testing.assert_array_equal(exe(x), expected)
            print("right", flush=True)
        """
    child = run_python(code)
    assert child.stdout is not None and child.stdout.readline() == "ready\n", child.communicate()
    for _ in range(5):
        time.sleep(0.05)  # both of its threads compute all the time
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "right\n", child.communicate()
    assert child.communicate(timeout=30) == ("", "")


def test_fork_while_another_thread_compiles(cold_cache: Path) -> None:
    """A child that compiles the same gets it, one that runs what it has runs it."""
    code = """
        import os, signal, threading, time
        import numpy as np
        import minidnn as md
        from minidnn import layers as L
        from tests.cpu.test_backend_faults import compiled, works
        exe = compiled()
        others = [L.Sequential(L.AvgPool2d(2), L.MaxPool2d(i), L.Tanh()) for i in (1, 2, 3)]
        x = np.ones((1, 5, 13, 13), np.float32)
        def compile_all():
            return [md.compile(net, x.shape, device="cpu") for net in others]
        thread = threading.Thread(target=compile_all)
        thread.start()
        children = []
        while thread.is_alive() and len(children) < 12:
            pid = os.fork()
            if pid == 0:
                signal.alarm(40)  # a child that hangs dies of it
                good = works(exe) and all(np.isfinite(e(x)).all() for e in compile_all())
                os._exit(0 if good else 1)
            children.append(pid)
            time.sleep(0.1)
        thread.join()
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        print(len(ended) > 2, sorted(set(ended)))
        """
    child = run_python(code, PYTHONWARNINGS="ignore::DeprecationWarning")
    out, err = child.communicate(timeout=120)
    assert out == "True [0]\n", (out, err)
