"""The worker pool of a loader: threads that make batches, each in place or in its own process.

Each worker process has one thread of this process that sends it tasks, over a pipe that nothing
else holds.  When the worker dies, its thread notices and raises; when this process dies, however
that happens, the worker reads the end of the pipe and exits.
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
    """Makes batches concurrently, in ``count`` threads, or in as many processes."""

    def __init__(self, make: Make, count: int, processes: bool) -> None:
        self._pid = os.getpid()
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Task] | None] = queue.SimpleQueue()
        self._others: list[_Process] = []
        # It runs when the pool is garbage, and at the interpreter's exit.
        self._finalizer = weakref.finalize(self, _end, self._pid, self._tasks, self._others, count)
        makers: list[Make] = [make] * count
        if processes:
            for _ in range(count):
                self._others.append(_Process(make))
            makers = list(self._others)
        for maker in makers:
            # A thread that is no daemon would keep the program from exiting if a sample hangs.
            threading.Thread(
                target=_work, args=(self._tasks, maker), name="minidnn-data", daemon=True
            ).start()

    def submit(self, task: Task) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((future, task))
        return future

    def are_whole(self) -> bool:
        """Whether all workers run: a forked child has no threads, and a process may have died."""
        return self._pid == os.getpid() and all(process.is_alive() for process in self._others)

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
        # A finished batch, or its error, must not stay referenced until the next task comes.
        del item, future


def _end(pid: int, tasks: queue.SimpleQueue[Any], processes: list[_Process], count: int) -> None:
    if pid != os.getpid():
        return
    for _ in range(count):
        tasks.put(None)
    for process in processes:
        process.end()


class _Process:
    """A worker process that makes batches, as a function that one thread calls."""

    def __init__(self, make: Make) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, worker_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(worker_end, make), daemon=True)
        try:
            with _without_interrupts():
                self._process.start()
        except (PicklingError, AttributeError, TypeError) as error:
            raise DataError(f"the dataset cannot be sent to a process: {error}") from error
        finally:
            worker_end.close()

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
        """Reads an array's bytes, which follow its dtype and shape in the pipe."""
        array = np.empty(shape, dtype)
        remaining = _bytes_of(array)
        while remaining:
            count = os.readv(self._connection.fileno(), [remaining])
            if not count:
                raise EOFError
            remaining = remaining[count:]
        return array

    def _why_gone(self, task: Task) -> str:
        self._process.join(5)
        code = self._process.exitcode
        ending = f"ended with exit code {code}"
        if code is not None and code < 0:
            ending = f"was killed by {signal.Signals(-code).name}"
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
            f"worker process {self._process.pid} {ending} before it gave batch {position} of epoch "
            f"{epoch}{hint}"
        )

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        # A worker only reads, so nothing is lost; its thread sees the end of the pipe.
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, make: Make) -> None:
    """Runs in a worker process: makes batches until the other end of its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            answer = _answer(make, connection.recv())
            if isinstance(answer, str):
                connection.send(answer)
                continue
            connection.send([(array.dtype.str, array.shape) for array in answer])
            for array in answer:
                remaining = _bytes_of(np.ascontiguousarray(array))
                while remaining:
                    remaining = remaining[os.write(connection.fileno(), remaining) :]


def _answer(make: Make, task: Task) -> tuple[np.ndarray, np.ndarray] | str:
    """Returns a batch, or the text of the error, with the traceback, that making it raised."""
    try:
        return make(*task)
    except BaseException as error:
        text = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        return f"{text}\n\nIn worker process {os.getpid()}:\n{traceback.format_exc()}"


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Blocks SIGINT, so that processes started inside never see Ctrl-C: this process acts on it."""
    resource_tracker.ensure_running()  # unblocks the signal when it has to start
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
