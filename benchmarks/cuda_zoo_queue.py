"""Cells for several worker processes on several GPUs: who gets which, and what becomes of them.

A worker reads a cell as a line of JSON from standard input and answers with one through the pipe
whose number ``--answers`` gives.  Nothing here knows what a cell is, and no GPU is needed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

TRIES = 2


@dataclass
class Cell:
    """What a worker is given, gigabytes that it may take, and how often it was given."""

    content: dict[str, Any]
    gigabytes: float = 0.0
    tries: int = 0


@dataclass(frozen=True)
class Setting:
    """How the workers of a GPU are started, on which cores, and how many."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    cores: frozenset[int]
    workers: int


class Pool:
    """Workers, and the cells that they have not measured yet, in order.

    ``report`` is called with each cell as it comes back, never twice at once.  A worker that dies
    or does not answer within ``cell_seconds`` is replaced and its cell tried again, before the
    others; then it is reported with what happened under "failed".  The cells that are with the
    workers of one GPU take at most ``gigabytes`` together, unless one alone takes more.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        settings: Sequence[Setting],
        report: Callable[[dict[str, Any]], object],
        gigabytes: float = math.inf,
        cell_seconds: float = math.inf,
    ) -> None:
        self._cells = list(cells)
        self._settings = settings
        self._report = report
        self._most = gigabytes
        self._cell_seconds = cell_seconds
        self._given: dict[int, list[Cell]] = {gpu: [] for gpu in range(len(settings))}
        self._workers: dict[_Worker, None] = {}
        self._changed = threading.Condition()
        self._ended = False

    def run(self, seconds: float = math.inf) -> int:
        """Measures until all is done or the time is over; how many cells are left then."""
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._serve, args=(gpu,), daemon=True)
            for gpu, setting in enumerate(self._settings)
            for _ in range(setting.workers)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and time.monotonic() < end:
                    thread.join(min(1.0, max(0.0, end - time.monotonic())))
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
                workers = list(self._workers)
            for worker in workers:
                worker.kill()
            for thread in threads:
                thread.join(5.0)
        return len(self._cells) + sum(map(len, self._given.values()))

    def _serve(self, gpu: int) -> None:
        worker: _Worker | None = None
        while (cell := self._take(gpu)) is not None:
            cell.tries += 1
            answer: dict[str, Any] | str
            try:
                worker = worker or self._started(gpu)
                answer = worker.ask(cell.content, self._cell_seconds)
            except OSError as error:
                answer = str(error)
            if isinstance(answer, str) and worker is not None:
                self._dismiss(worker)
                worker = None
            self._answered(gpu, cell, answer)
        if worker is not None:
            self._dismiss(worker)

    def _take(self, gpu: int) -> Cell | None:
        """The first cell for which there is room, once there is one; None when all is done."""
        given = self._given[gpu]
        with self._changed:
            while not self._ended and (self._cells or any(self._given.values())):
                free = self._most - sum(cell.gigabytes for cell in given)
                for cell in self._cells:
                    if cell.gigabytes <= free or not given:
                        self._cells.remove(cell)
                        given.append(cell)
                        return cell
                self._changed.wait()
        return None

    def _answered(self, gpu: int, cell: Cell, answer: dict[str, Any] | str) -> None:
        with self._changed:
            if self._ended:
                return
            self._given[gpu].remove(cell)
            if isinstance(answer, str) and cell.tries < TRIES:
                self._cells.insert(0, cell)
            elif isinstance(answer, str):
                nothing: dict[str, Any] = {"ms": {}, "interval": {}, "compile_seconds": {}}
                self._report(cell.content | nothing | {"errors": {}, "failed": {"worker": answer}})
            else:
                self._report(answer)
            self._changed.notify_all()

    def _started(self, gpu: int) -> _Worker:
        with self._changed:
            if self._ended:
                raise InterruptedError("the time is over")
            worker = _Worker(self._settings[gpu])
            self._workers[worker] = None
        return worker

    def _dismiss(self, worker: _Worker) -> None:
        worker.kill()
        worker.close()
        with self._changed:
            del self._workers[worker]


class _Worker:
    """A process, with whatever it starts in a group of its own."""

    def __init__(self, setting: Setting) -> None:
        answers, theirs = os.pipe()
        self._process = subprocess.Popen(
            [*setting.command, "--answers", str(theirs)],
            stdin=subprocess.PIPE,
            env=dict(setting.environment),
            pass_fds=(theirs,),
            start_new_session=True,
        )
        os.close(theirs)
        self._answers: IO[bytes] = os.fdopen(answers, "rb")
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(self._process.pid, setting.cores)

    def ask(self, content: dict[str, Any], seconds: float) -> dict[str, Any] | str:
        """The answer, or what went wrong."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(content).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._what_became()
        ready, _, _ = select.select([self._answers], [], [], min(seconds, 1e6))
        if not ready:
            return f"no answer within {seconds:.0f} s"
        text = self._answers.readline()
        if not text.endswith(b"\n"):
            return self._what_became()
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _what_became(self) -> str:
        try:
            return f"the process has ended with status {self._process.wait(10)}"
        except subprocess.TimeoutExpired:
            return "the process does not answer any more"

    def kill(self) -> None:
        """Ends it and what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Closes the pipes of a process that has ended."""
        self._answers.close()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
