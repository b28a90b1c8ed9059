"""Runs jobs in a process of their own, so that a job that crashes or hangs does not end a study.

A job that kills its process, or exceeds its time limit, has a :class:`Failure` for a result.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

J = TypeVar("J")
R = TypeVar("R")

LIMIT_SECONDS = 60.0
"""Seconds that a job may take; the first job of a process also has :data:`_START_SECONDS`."""
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Failure:
    """Why a job has no result.

    Attributes:
        kind: "error" if it raised, "fault" if its process cannot go on, "limit" if it took too
            long.
        text: the error message, or how its process ended.
    """

    kind: str
    text: str


class FaultError(Exception):
    """A job raises this when its process cannot run any other job."""


class IsolatedJobs(Generic[J, R]):
    """Runs jobs one after the other in one process, which it replaces if it dies or is killed.

    Args:
        task: is called with each job; it, jobs and results must be picklable.  A script that
            starts this needs ``if __name__ == "__main__":``, since processes are spawned.
        limit: seconds that a job may take.
    """

    def __init__(self, task: Callable[[J], R], limit: float = LIMIT_SECONDS) -> None:
        self._task, self._limit = task, limit
        self._process: Any = None
        self._pipe: Connection | None = None

    def run(self, jobs: Iterable[J]) -> Iterator[R | Failure]:
        """Yields the result of each job, or its failure, in their order and as soon as it is known.
        The next job is drawn from ``jobs`` when the one before is done."""
        try:
            for job in jobs:
                yield self._one(job)
        finally:
            self._end()

    def _one(self, job: J) -> R | Failure:
        limit = self._limit
        if self._pipe is None:
            limit += _START_SECONDS
            self._start()
        assert self._pipe is not None
        result: R | Failure
        try:
            self._pipe.send(job)
            if not self._pipe.poll(limit):
                self._end()
                return Failure("limit", f"no result within {self._limit:g} s")
            result = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(_START_SECONDS)
            status = self._process.exitcode
            self._end()
            return Failure("fault", f"its process ended with status {status}")
        if isinstance(result, Failure) and result.kind == "fault":
            self._end()
        return result

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._task), daemon=True)
        self._process.start()
        other.close()

    def _end(self) -> None:
        if self._pipe is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._pipe = None


def _serve(pipe: Connection, task: Callable[[Any], Any]) -> None:
    with contextlib.suppress(EOFError):
        while True:
            job = pipe.recv()
            try:
                result = task(job)
            except FaultError as error:
                result = Failure("fault", str(error))
            except Exception as error:
                result = Failure("error", "".join(traceback.format_exception_only(error)).strip())
            pipe.send(result)
