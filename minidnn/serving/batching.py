"""The queue of a model: requests that wait, and the batches that are made of them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
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


class Batcher:
    """Runs a model's requests in batches: one begins when it is full, or when its first request
    has waited for ``max_delay``, and when the batch before it has ended.

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
        self._waiting: deque[_Waiting] = deque()
        self._rows = 0
        self._changed = asyncio.Event()
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._work())

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
        # A request that may be valid is never larger than an empty queue.
        if self._rows and self._rows + rows > self._settings.max_queue:
            raise Fault(
                Refusal.FULL,
                f"{self._rows} rows wait for model {self.model.source.name!r}, and {rows} are "
                f"given; valid are {self._settings.max_queue} in all: try again later",
            )
        waiting = _Waiting(inputs, rows, asyncio.get_running_loop().time())
        self._waiting.append(waiting)
        self._add(rows)
        try:
            return await waiting.future
        finally:
            if waiting in self._waiting:  # cancelled before it was taken
                self._waiting.remove(waiting)
                self._add(-rows)

    async def close(self) -> None:
        """Takes nothing more, and ends when all that was taken is answered."""
        self._closed = True
        self._changed.set()
        await self._task

    def _add(self, rows: int) -> None:
        self._rows += rows
        self.meter.waiting(self._rows)
        self._changed.set()

    async def _work(self) -> None:
        while await self._gathered():
            batch = self._take()
            if batch:
                await self._run(batch)

    async def _gathered(self) -> bool:
        """Waits until a batch should begin; False if none will."""
        loop = asyncio.get_running_loop()
        while self._rows < self.model.max_rows:
            if self._closed:
                return bool(self._waiting)
            left = None
            if self._waiting:
                left = self._waiting[0].arrived + self._settings.max_delay - loop.time()
                if left <= 0:
                    break
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return True

    def _take(self) -> list[_Waiting]:
        """The first requests that fit into one batch."""
        batch: list[_Waiting] = []
        room = self.model.max_rows
        while self._waiting and self._waiting[0].rows <= room:
            waiting = self._waiting.popleft()
            room -= waiting.rows
            batch.append(waiting)
        self._add(-sum(each.rows for each in batch))
        return batch

    async def _run(self, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        rows = [each.rows for each in batch]
        try:
            inputs = [each.inputs for each in batch]
            results = await loop.run_in_executor(self._compute, self.model.run, inputs, rows)
        except Exception as error:
            log.exception("model %r fails", self.model.source.name)
            told = f"model {self.model.source.name!r} fails: {type(error).__name__}: {error}"
            for each in batch:
                if not each.future.done():
                    each.future.set_exception(Fault(Refusal.FAILED, told))
            return
        ended = loop.time()
        self.meter.batch(sum(rows), ended - begun)
        for each, result in zip(batch, results, strict=True):
            self.meter.waited(begun - each.arrived)
            if not each.future.done():  # the caller may have gone
                each.future.set_result(result)
