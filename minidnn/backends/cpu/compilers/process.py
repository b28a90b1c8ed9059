"""Running compilers: in parallel, with a limit on time, never leaving a process behind.

Each command runs in a process group of its own.  Whatever ends the wait (a limit, Ctrl-C, any
other exception) kills the whole groups that still run, grandchildren included.  Where coreutils'
``timeout`` is there it starts the command, so that a compiler that hangs dies by itself even when
this process is killed with SIGKILL and can clean up nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

Watch = Callable[[str, int, int], None]
"""Called with what is being done, and how much of how much is done (0, 0: not known)."""


def terminal_progress() -> Watch:
    """A progress bar on standard error, or nothing when that is not a terminal."""
    if not sys.stderr.isatty():
        return lambda text, done, total: None
    shown = ""

    def draw(text: str, done: int, total: int) -> None:
        nonlocal shown
        part = min(1.0, done / total) if total else 0.0
        bar = f" [{'#' * int(part * 30):30}] {part:4.0%}" if total else " ..."
        line = f"\r{text:32}{bar:40}"
        if line != shown:
            sys.stderr.write(line + ("\n" if total and done >= total else ""))
            sys.stderr.flush()
            shown = line

    return draw


POLL_SECONDS = 0.002, 0.02
"""The shortest and the longest time between polls: else it is a fiftieth of the time so far."""
OUTPUT_BYTES = 1 << 18
"""How much of a command's output is kept (its beginning)."""


_starting = threading.RLock()
"""Held while a process is started, and during a fork: a child that is forked meanwhile would hold
open the pipe by which ``Popen`` learns that the command has begun.  ``Popen`` would then wait as
long as the child lives, which may itself wait for what is being compiled."""
os.register_at_fork(
    before=_starting.acquire,
    after_in_parent=_starting.release,
    after_in_child=_starting.release,
)


@dataclass(frozen=True)
class Command:
    """A command line, what to call it in messages, and its limit in seconds.

    ``folder`` is where it runs and has its temporary files: whoever makes the folder removes it,
    and with it what a command that was killed has left there.
    """

    argv: tuple[str, ...]
    name: str
    timeout: float
    folder: Path | None = None
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Finished:
    """How a command ended: ``status`` (negative: the signal), output and seconds."""

    command: Command
    status: int
    timed_out: bool
    output: str
    seconds: float

    @property
    def ok(self) -> bool:
        return self.status == 0 and not self.timed_out

    @property
    def signal(self) -> int | None:
        """The signal that ended it; a shell or ``timeout`` reports one as 128 + signal."""
        if self.status < 0:
            return -self.status
        return self.status - 128 if 128 < self.status <= 128 + 64 else None

    def describe(self) -> str:
        """``took longer than 5 s and was killed``, ``was killed by signal 9 (SIGKILL)``, ..."""
        if self.timed_out:
            limit = self.command.timeout
            return f"took longer than {limit:g} s and was killed"
        if self.signal is not None:
            try:
                name = signal.Signals(self.signal).name
            except ValueError:
                name = "unknown"
            return f"was killed by signal {self.signal} ({name})"
        return f"failed with exit status {self.status}"


def run(command: Command, on_poll: Callable[[], None] | None = None) -> Finished:
    """Runs one command; see :func:`run_all`."""
    return run_all([command], jobs=1, on_poll=on_poll)[0]


def run_all(
    commands: Sequence[Command],
    jobs: int,
    on_done: Callable[[Finished], None] | None = None,
    on_poll: Callable[[], None] | None = None,
) -> list[Finished]:
    """Runs commands, at most ``jobs`` at once, and returns how each ended, in their order.

    After the first command that fails no further one is started and the others are killed; they
    are missing from the result, which then ends with the one that failed.  ``on_done`` is called
    as commands end, ``on_poll`` several times in a tenth of a second while any runs.

    Raises:
        OSError: a command cannot be started at all.
    """
    waiting = list(enumerate(commands))[::-1]
    running: dict[int, _Process] = {}
    done: dict[int, Finished] = {}
    begin = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < max(1, jobs):
                index, command = waiting.pop()
                with _ctrl_c_afterwards():
                    running[index] = _Process(command)
            for index in list(running):
                finished = running[index].check()
                if finished is None:
                    continue
                running.pop(index).close()
                if on_done is not None:
                    on_done(finished)
                if not finished.ok:
                    return [done[i] for i in sorted(done)] + [finished]
                done[index] = finished
            if on_poll is not None:
                on_poll()
            if running:
                shortest, longest = POLL_SECONDS
                time.sleep(min(max(shortest, (time.monotonic() - begin) / 50), longest))
    finally:
        for process in running.values():
            process.kill()
            process.close()
    return [done[i] for i in sorted(done)]


@contextlib.contextmanager
def _ctrl_c_afterwards() -> Iterator[None]:
    """Ctrl-C waits until the body is done: in the middle of ``Popen`` it would leave a process
    behind that nobody knows."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # no exception can come, or it is ignored
        return
    struck: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: struck.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if struck:
        handler(*struck[0])


class _Process:
    """One running command and the file that takes its output."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.started = time.monotonic()
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        temporary = {"TMPDIR": str(command.folder)} if command.folder else {}
        environment = {**os.environ, "LC_ALL": "C", **temporary, **dict(command.env)}
        try:
            with _starting:
                self.process = subprocess.Popen(
                    [*_watchdog(command.timeout), *command.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=self.output,
                    stderr=subprocess.STDOUT,
                    cwd=command.folder,
                    env=environment,
                    start_new_session=True,
                )
        except BaseException:
            self.output.close()
            raise

    def check(self) -> Finished | None:
        """How the command ended, or None while it runs within its limit."""
        seconds = time.monotonic() - self.started
        timed_out = False
        if self._ended():
            # While the leader is a zombie its group cannot belong to anybody else.
            self._signal_group()
            status = self.process.wait()
        elif seconds > self.command.timeout:
            timed_out = True
            self.kill()
            status = self.process.returncode
        else:
            return None
        self.output.seek(0)
        text = self.output.read(OUTPUT_BYTES).decode("utf-8", "replace")
        return Finished(self.command, status, timed_out, text, seconds)

    def kill(self) -> None:
        self._signal_group()
        self.process.wait()

    def close(self) -> None:
        self.output.close()

    def _ended(self) -> bool:
        if not hasattr(os, "waitid"):
            return self.process.poll() is not None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def _signal_group(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _watchdog(timeout: float) -> list[str]:
    """The beginning of a command line that ends the command even if this process is killed."""
    tool = shutil.which("timeout")
    return [tool, "-s", "KILL", str(int(timeout) + 5)] if tool else []
