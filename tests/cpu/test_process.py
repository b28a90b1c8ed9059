"""Commands end in time, in order, and leave nobody behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from minidnn.backends.cpu.compilers.process import Command, run, run_all

from .conftest import processes_with, run_python, wait_until


def shell(script: str, name: str = "x", timeout: float = 20.0) -> Command:
    return Command(("sh", "-c", script), name, timeout)


def test_output_and_status() -> None:
    ended = run(shell("echo out; echo err >&2; exit 3"))
    assert (ended.status, ended.ok, ended.signal) == (3, False, None)
    assert ended.output == "out\nerr\n"
    assert ended.describe() == "failed with exit status 3"


def test_hanging_command_is_killed_with_its_children() -> None:
    marker = "sleep 1031.5"
    start = time.monotonic()
    ended = run(shell(f"{marker} & {marker}", timeout=0.3))
    assert time.monotonic() - start < 5
    assert ended.timed_out and not ended.ok
    assert ended.describe() == "took longer than 0.3 s and was killed"
    assert wait_until(lambda: not processes_with(marker))


def test_children_of_an_ended_command_are_killed() -> None:
    marker = "sleep 1032.5"
    assert run(shell(f"{marker} & exit 0")).ok
    assert wait_until(lambda: not processes_with(marker))


@pytest.mark.parametrize("name", ["SEGV", "KILL", "TERM"])
def test_signal_is_named(name: str) -> None:
    ended = run(shell(f"kill -{name} $$"))
    number = getattr(signal, f"SIG{name}")
    assert ended.signal == number
    assert ended.describe() == f"was killed by signal {int(number)} (SIG{name})"


def test_results_keep_the_order_of_the_commands() -> None:
    commands = [shell(f"sleep 0.{3 - i}; echo {i}", str(i)) for i in range(3)]
    assert [ended.output for ended in run_all(commands, jobs=3)] == ["0\n", "1\n", "2\n"]


def test_jobs_bounds_what_runs_at_once(tmp_path: Path) -> None:
    script = f"echo + >> {tmp_path}/log; sleep 0.05; echo - >> {tmp_path}/log"
    run_all([shell(script) for _ in range(6)], jobs=2)
    level = most = 0
    for line in (tmp_path / "log").read_text().split():
        level += 1 if line == "+" else -1
        most = max(most, level)
    assert most == 2


def test_first_failure_ends_the_others() -> None:
    marker = "sleep 1033.5"
    start = time.monotonic()
    ended = run_all([shell(marker, "a"), shell("exit 7", "b"), shell("echo never", "c")], jobs=2)
    assert time.monotonic() - start < 5
    assert [e.command.name for e in ended] == ["b"] and ended[-1].status == 7
    assert wait_until(lambda: not processes_with(marker))


def test_missing_program_raises() -> None:
    with pytest.raises(OSError):
        run(Command(("/nonexistent/program",), "x", 1.0, Path("/nonexistent")))


def test_temporary_files_are_in_the_commands_folder(tmp_path: Path) -> None:
    """So that they go with it when the command is killed."""
    command = Command(("sh", "-c", 'pwd; echo "$TMPDIR"'), "x", 20.0, tmp_path)
    assert run(command).output == f"{tmp_path}\n" * 2


def test_ctrl_c_ends_the_command() -> None:
    marker = "sleep 1034.5"
    child = run_python(
        f"""
        from minidnn.backends.cpu.compilers.process import Command, run
        try:
            run(Command(("sh", "-c", "{marker} & {marker}"), "x", 60.0))
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert wait_until(lambda: len(processes_with(marker)) >= 2), child.communicate()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=10)
    assert out == "interrupted\n", err
    assert wait_until(lambda: not processes_with(marker))


@pytest.mark.full
def test_killed_parent_leaves_a_hanging_compiler_only_for_its_limit() -> None:
    marker = "sleep 1035.5"
    child = run_python(
        f"""
        from minidnn.backends.cpu.compilers.process import Command, run
        run(Command(("sh", "-c", "exec {marker}"), "x", 1.0))
        """
    )
    assert wait_until(lambda: processes_with(marker)), child.communicate()
    child.kill()
    child.communicate(timeout=10)
    assert wait_until(lambda: not processes_with(marker), 10)


def test_forks_wait_while_a_command_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child would keep ``Popen``'s pipe open, and the command's begin be waited for with it."""
    usual, inside, ended = subprocess.Popen, threading.Event(), []

    def slow(*about: Any, **rest: Any) -> Any:
        inside.set()
        time.sleep(0.3)
        made = usual(*about, **rest)
        ended.append(time.monotonic())
        return made

    monkeypatch.setattr(subprocess, "Popen", slow)
    thread = threading.Thread(target=lambda: run(shell("true")))
    thread.start()
    assert inside.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and forks, from 3.12 on
        child = os.fork()
    if child == 0:
        os._exit(0)
    forked = time.monotonic()
    os.waitpid(child, 0)
    thread.join(10)
    assert ended and ended[0] <= forked
