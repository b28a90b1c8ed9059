"""Threads that make batches, each by itself or by a process of its own.

A process is asked by one thread and answers it, over a pipe that nothing else holds: when it dies
its thread is told so, and when this process dies, however that happens, it ends itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pickle import PicklingError
from typing import Any

import numpy as np

from minidnn.data.datasets import DataError

__all__ = ["Workers"]

Make = Callable[..., tuple[np.ndarray, np.ndarray]]
Task = tuple[Any, ...]


class Workers:
    """Makes batches at once, in ``count`` threads, or in as many processes."""

    def __init__(self, make: Make, count: int, processes: bool) -> None:
        self._pid = os.getpid()
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Task] | None] = queue.SimpleQueue()
        self._others: list[_Process] = []
        # It runs when nobody has these workers any more, and at the interpreter's end.
        self._finalizer = weakref.finalize(self, _end, self._pid, self._tasks, self._others, count)
        makes: list[Make] = [make] * count
        if processes:
            for _ in range(count):
                self._others.append(_Process(make))
            makes = list(self._others)
        for one in makes:
            # Threads that are no daemons would keep a program from ending if a sample hangs.
            threading.Thread(
                target=_work, args=(self._tasks, one), name="minidnn-data", daemon=True
            ).start()

    def submit(self, task: Task) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((future, task))
        return future

    def are_whole(self) -> bool:
        """Whether all are there: a child of a fork has no threads, and a process may have died."""
        return self._pid == os.getpid() and all(one.is_alive() for one in self._others)

    def close(self) -> None:
        self._finalizer()


def _work(tasks: queue.SimpleQueue[tuple[Future[Any], Task] | None], make: Make) -> None:
    while (item := tasks.get()) is not None:
        future, task = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(make(*task))
            except BaseException as error:
                future.set_exception(error)
        # A batch that is done, or its error, must not wait here for the next one.
        del item, future


def _end(pid: int, tasks: queue.SimpleQueue[Any], processes: list[_Process], count: int) -> None:
    if pid != os.getpid():
        return
    for _ in range(count):
        tasks.put(None)
    for one in processes:
        one.end()


class _Process:
    """A process that makes batches; called by one thread."""

    def __init__(self, make: Make) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        try:
            with _without_interrupts():
                self._process.start()
        except (PicklingError, AttributeError, TypeError) as error:
            raise DataError(f"the dataset cannot be sent to a process: {error}") from error
        finally:
            theirs.close()

    def __call__(self, *task: Any) -> tuple[np.ndarray, np.ndarray]:
        try:
            self._connection.send(task)
            if self._connection not in wait([self._connection, self._process.sentinel]):
                raise EOFError
            answer = self._connection.recv()
            if isinstance(answer, str):
                raise DataError(answer)
            x, target = (self._receive(*each) for each in answer)
            return x, target
        except (EOFError, OSError):
            raise DataError(self._why_gone(task)) from None

    def _receive(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        array = np.empty(shape, dtype)
        left = _bytes_of(array)
        while left:
            count = os.readv(self._connection.fileno(), [left])
            if not count:
                raise EOFError
            left = left[count:]
        return array

    def _why_gone(self, task: Task) -> str:
        self._process.join(5)
        code = self._process.exitcode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        hint = ""
        if code == -signal.SIGKILL:
            hint = "; the system does that when memory runs out"
        elif code == 1:
            hint = (
                "; what it said stands above.  A script that starts processes needs "
                "if __name__ == '__main__':"
            )
        _, epoch, position, _ = task
        return (
            f"worker process {self._process.pid} {how} before it gave batch {position} of epoch "
            f"{epoch}{hint}"
        )

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        # It only reads, so nothing is lost; its thread is told by the pipe.
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, make: Make) -> None:
    """What a process does until the other end of its pipe is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            answer = _answer(make, connection.recv())
            if isinstance(answer, str):
                connection.send(answer)
                continue
            connection.send([(array.dtype.str, array.shape) for array in answer])
            for array in answer:
                left = _bytes_of(np.ascontiguousarray(array))
                while left:
                    left = left[os.write(connection.fileno(), left) :]


def _answer(make: Make, task: Task) -> tuple[np.ndarray, np.ndarray] | str:
    try:
        return make(*task)
    except BaseException as error:
        told = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        return f"{told}\n\nIn worker process {os.getpid()}:\n{traceback.format_exc()}"


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started herein never see Ctrl-C, which this one acts on."""
    resource_tracker.ensure_running()  # unblocks the signal when it has to start
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
