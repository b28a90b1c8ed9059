"""The queue of a model: requests that wait, and the batches that are made of them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from minidnn.serving.faults import Fault, Refusal
from minidnn.serving.metrics import Meter
from minidnn.serving.model import ServedModel
from minidnn.serving.settings import Settings

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Waiting:
    inputs: Sequence[np.ndarray]
    rows: int
    arrived: float
    future: asyncio.Future[list[np.ndarray]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(frozen=True)
class _Ran:
    """A batch that was computed: the results of its requests, or why there are none."""

    batch: Sequence[_Waiting]
    results: Sequence[list[np.ndarray]] | Exception
    begun: float
    ended: float


class Batcher:
    """Runs a model's requests in batches: one begins when it is full, or when its first request
    has waited for ``max_delay``, and when the batch before it has ended.

    What is in a batch is decided when it begins, by the thread that computes it: the next one
    follows at once, and has whatever came meanwhile.

    Args:
        compute: runs batches; one thread, which all models share, as each batch uses all cores.
    """

    def __init__(
        self, model: ServedModel, settings: Settings, compute: Executor, meter: Meter
    ) -> None:
        self.model = model
        self.meter = meter
        self._settings = settings
        self._compute = compute
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # of what waits
        self._waiting: deque[_Waiting] = deque()
        self._rows = 0
        self._changed = asyncio.Event()
        self._closed = False
        self._task = self._loop.create_task(self._work())

    @property
    def waiting_rows(self) -> int:
        return self._rows

    async def infer(self, inputs: Sequence[np.ndarray], rows: int) -> list[np.ndarray]:
        """The outputs for a request's inputs, once its batch was computed.

        Fault if too many rows wait, if the model was unloaded, or if computing failed.  Whoever is
        cancelled is taken from the queue.
        """
        if self._closed:
            raise Fault(Refusal.UNAVAILABLE, f"model {self.model.source.name!r} is being unloaded")
        waiting = _Waiting(inputs, rows, self._loop.time())
        with self._lock:
            queued = self._rows
            # A request that may be valid is never larger than an empty queue.
            full = bool(queued) and queued + rows > self._settings.max_queue
            if not full:
                self._waiting.append(waiting)
                self._rows += rows
        if full:
            raise Fault(
                Refusal.FULL,
                f"{queued} rows wait for model {self.model.source.name!r}, and {rows} are "
                f"given; valid are {self._settings.max_queue} in all: try again later",
            )
        self._tell()
        try:
            return await waiting.future
        finally:
            if waiting.future.cancelled():
                self._leave(waiting)

    async def close(self) -> None:
        """Takes nothing more, and ends when all that was taken is answered."""
        self._closed = True
        self._changed.set()
        await self._task

    def _tell(self) -> None:
        self.meter.waiting(self._rows)
        self._changed.set()

    def _leave(self, waiting: _Waiting) -> None:
        """Takes a request from the queue, if it is still there."""
        with self._lock:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self._rows -= waiting.rows
        self._tell()

    async def _work(self) -> None:
        running: set[asyncio.Future[_Ran]] = set()
        while await self._gathered():
            taken = asyncio.Event()
            ran = self._loop.run_in_executor(self._compute, self._run, taken)
            running.add(ran)
            ran.add_done_callback(running.discard)
            ran.add_done_callback(self._answer)
            await taken.wait()
            self._tell()
        await asyncio.gather(*running)

    async def _gathered(self) -> bool:
        """Waits until a batch should begin; False if none will."""
        while self._rows < self.model.max_rows:
            self._changed.clear()
            with self._lock:
                first = self._waiting[0].arrived if self._waiting else None
            if self._closed:
                return first is not None
            left = None
            if first is not None:
                left = first + self._settings.max_delay - self._loop.time()
                if left <= 0:
                    break
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return True

    # In the thread that computes

    def _run(self, taken: asyncio.Event) -> _Ran:
        batch = self._take()
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(taken.set)
        begun = self._loop.time()
        results: Sequence[list[np.ndarray]] | Exception = ()
        if batch:
            rows = [each.rows for each in batch]
            try:
                results = self.model.run([each.inputs for each in batch], rows)
            except Exception as error:
                log.exception("model %r fails", self.model.source.name)
                results = error
        return _Ran(batch, results, begun, self._loop.time())

    def _take(self) -> list[_Waiting]:
        """The first requests that fit into one batch: of those that several executables would
        compute one after another, as many as the first of them does."""
        with self._lock:
            count, rows = 0, 0
            alone, rows_alone = 0, 0
            for waiting in self._waiting:
                if count and rows + waiting.rows > self.model.max_rows:
                    break
                count, rows = count + 1, rows + waiting.rows
                if len(self.model.parts_of(rows)) == 1:
                    alone, rows_alone = count, rows
            if alone:
                count, rows = alone, rows_alone
            self._rows -= rows
            return [self._waiting.popleft() for _ in range(count)]

    # In the loop again

    def _answer(self, future: asyncio.Future[_Ran]) -> None:
        if future.cancelled():  # the server stops, and waits no longer
            return
        ran = future.result()
        if isinstance(ran.results, Exception):
            error = ran.results
            told = f"model {self.model.source.name!r} fails: {type(error).__name__}: {error}"
            for each in ran.batch:
                if not each.future.done():
                    each.future.set_exception(Fault(Refusal.FAILED, told))
            return
        if ran.batch:
            self.meter.batch(sum(each.rows for each in ran.batch), ran.ended - ran.begun)
        for each, result in zip(ran.batch, ran.results, strict=True):
            self.meter.waited(ran.begun - each.arrived)
            if not each.future.done():  # the caller may have gone
                each.future.set_result(result)
