"""Processes that measure on one GPU take turns.  No GPU is needed: the lock is a file."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from minidnn.cudnn import gpu_lock
from minidnn.cudnn.gpu_lock import lock_at

HOLDER = """
import sys, time
from minidnn.cudnn.gpu_lock import lock_at
with lock_at("gpu-0"):
    print("holds it", flush=True)
    sys.stdin.readline()
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu_lock, "_turns", {})


def holder() -> subprocess.Popen[str]:
    """Another process that has its turn until it reads a line."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "holds it\n"
    return process


def finish(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=30)


def test_another_process_waits_for_its_turn() -> None:
    process = holder()
    threading.Timer(0.3, finish, [process]).start()
    begin = time.monotonic()
    with lock_at("gpu-0", 60.0) as alone:
        assert alone
        assert time.monotonic() - begin >= 0.25
    process.wait(30)


def test_another_gpu_is_not_waited_for() -> None:
    process = holder()
    with lock_at("gpu-1", 0.0) as alone:
        assert alone
    finish(process)


def test_a_holder_that_is_killed_has_had_its_turn() -> None:
    process = holder()
    process.kill()
    process.communicate(timeout=30)
    with lock_at("gpu-0", 30.0) as alone:
        assert alone


def test_a_holder_that_hangs_costs_the_limit_once(caplog: pytest.LogCaptureFixture) -> None:
    process = holder()
    with caplog.at_level(logging.WARNING):
        with lock_at("gpu-0", 0.2) as alone:
            assert not alone
        begin = time.monotonic()
        for _ in range(3):
            with lock_at("gpu-0", 60.0) as alone:
                assert not alone
        assert time.monotonic() - begin < 30.0
    assert [r.getMessage() for r in caplog.records] == [
        "another process still measures on gpu-0 after 0 s; going on beside it, so measured "
        "times may be too long"
    ]
    finish(process)
    for limit in (0.0, 30.0):
        with lock_at("gpu-0", limit) as alone:
            assert alone


def test_a_long_wait_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_lock, "LONG_SECONDS", 0.05)
    process = holder()
    threading.Timer(0.3, finish, [process]).start()
    with caplog.at_level(logging.WARNING), lock_at("gpu-0", 60.0) as alone:
        assert alone
    (said,) = [record.getMessage() for record in caplog.records]
    lock = tmp_path / "cache" / "locks" / "gpu-0.lock"
    who = f"process {process.pid} on {platform.node()}"
    assert said == f"waiting for {who}, which measures on gpu-0 and holds {lock} (for at most 60 s)"
    process.wait(30)


def test_a_thread_may_ask_again_and_others_wait_until_it_is_done() -> None:
    order = []

    def other() -> None:
        with lock_at("gpu-0"):
            order.append("other")

    with lock_at("gpu-0"):
        with lock_at("gpu-0", 0.0) as alone:
            assert alone
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(30)
    assert order == ["first", "other"]


def said_by_a_late_thread(caplog: pytest.LogCaptureFixture) -> str:
    """What a thread logs that asks while another one of this process has, or awaits, its turn."""

    def ask() -> None:
        with lock_at("gpu-0", 0.05) as alone:
            assert not alone

    caplog.clear()
    with caplog.at_level(logging.WARNING):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(30)
    return caplog.records[0].getMessage()


def test_a_thread_that_is_late_names_the_other_thread(caplog: pytest.LogCaptureFixture) -> None:
    with lock_at("gpu-0"):
        said = said_by_a_late_thread(caplog)
    assert said.startswith("another thread of this process still measures on gpu-0 after 0 s;")


def test_a_thread_that_is_late_behind_one_that_waits_names_the_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def wait() -> None:
        with lock_at("gpu-0", 30.0):
            pass

    process = holder()
    thread = threading.Thread(target=wait)
    thread.start()
    while not gpu_lock._turns:
        time.sleep(0.001)
    time.sleep(0.05)
    said = said_by_a_late_thread(caplog)
    finish(process)
    thread.join(30)
    assert said.startswith("another process still measures on gpu-0 after 0 s;")


def test_an_error_ends_the_turn() -> None:
    with pytest.raises(KeyError), lock_at("gpu-0"):
        raise KeyError
    finish(holder())


def test_without_a_folder_to_write_in_there_is_nothing_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path / "file" / "cache"))
    with lock_at("gpu-0", 0.0) as alone:
        assert alone


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_waits_and_does_not_end_its_parents_turn() -> None:
    with lock_at("gpu-0"):
        child = os.fork()
        if child == 0:
            with lock_at("gpu-0", 0.1) as alone:
                os._exit(int(alone))
        assert os.waitpid(child, 0)[1] == 0
        assert not _is_free()
    assert _is_free()


def _is_free() -> bool:
    code = "from minidnn.cudnn.gpu_lock import lock_at\nwith lock_at('gpu-0', 0) as a: print(a)"
    return subprocess.check_output([sys.executable, "-c", code], text=True) == "True\n"
