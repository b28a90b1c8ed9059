"""The models of a server by name and version: loading, replacing and finding them, and batching.

:class:`Repository` has the versions of all models; each loaded version has a :class:`Batcher`, a
queue whose waiting requests are computed in batches.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from minidnn.errors import MiniDNNError, did_you_mean
from minidnn.serving.metrics import Meter, Metrics
from minidnn.serving.model import ServedModel, Source, load
from minidnn.serving.settings import Fault, Refusal, Settings

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Waiting:
    """A request in the queue, and the future of its outputs."""

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
    """Runs a model's requests in batches.

    A batch begins when it is full, or when its first request has waited for ``max_delay``, and not
    before the previous batch has ended.  The thread that computes a batch chooses its requests when
    the batch begins, so that requests that arrived during the previous one are in it.

    Args:
        model: runs the batches.
        settings: have the delay and the limit of the queue.
        compute: an executor of one thread, which all models share, as each batch uses all cores.
        meter: records the metrics.
    """

    def __init__(
        self, model: ServedModel, settings: Settings, compute: Executor, meter: Meter
    ) -> None:
        self.model = model
        self.meter = meter
        self._settings = settings
        self._compute = compute
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()  # guards _waiting and _rows
        self._waiting: deque[_Waiting] = deque()
        self._rows = 0
        self._changed = asyncio.Event()
        self._closed = False
        self._task = self._loop.create_task(self._work())

    @property
    def waiting_rows(self) -> int:
        return self._rows

    async def infer(self, inputs: Sequence[np.ndarray], rows: int) -> list[np.ndarray]:
        """The outputs for a request's inputs, once its batch is computed.

        Fault if too many rows wait, if the model was unloaded, or if computing failed.  A cancelled
        request leaves the queue.
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
        """Accepts no more requests, and returns when all accepted ones are answered."""
        self._closed = True
        self._changed.set()
        await self._task

    def _tell(self) -> None:
        """Updates the metric of waiting rows, and wakes the task that begins batches."""
        self.meter.waiting(self._rows)
        self._changed.set()

    def _leave(self, waiting: _Waiting) -> None:
        """Removes a request from the queue, if it is still there."""
        with self._lock:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self._rows -= waiting.rows
        self._tell()

    async def _work(self) -> None:
        """Starts batch after batch in the thread that computes, until the batcher is closed."""
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
        """Waits until a batch should begin; False if the batcher is closed and empty."""
        while self._rows < self.model.max_rows:
            self._changed.clear()
            with self._lock:
                first = self._waiting[0].arrived if self._waiting else None
            if self._closed:
                return first is not None
            remaining = None
            if first is not None:
                remaining = first + self._settings.max_delay - self._loop.time()
                if remaining <= 0:
                    break
            try:
                async with asyncio.timeout(remaining):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return True

    # In the thread that computes

    def _run(self, taken: asyncio.Event) -> _Ran:
        """Computes a batch; ``taken`` is set when its requests have left the queue."""
        batch = self._take()
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(taken.set)
        begun = self._loop.time()
        results: Sequence[list[np.ndarray]] | Exception = ()
        if batch:
            rows = [request.rows for request in batch]
            try:
                results = self.model.run([request.inputs for request in batch], rows)
            except Exception as error:
                log.exception("model %r fails", self.model.source.name)
                results = error
        return _Ran(batch, results, begun, self._loop.time())

    def _take(self) -> list[_Waiting]:
        """Takes the first requests that fit into one batch from the queue.

        Where such a batch would be split between executables, it takes as many of them as fill one
        executable, if any do.
        """
        with self._lock:
            count, rows = 0, 0
            unsplit, rows_unsplit = 0, 0
            for waiting in self._waiting:
                if count and rows + waiting.rows > self.model.max_rows:
                    break
                count, rows = count + 1, rows + waiting.rows
                if len(self.model.parts_of(rows)) == 1:
                    unsplit, rows_unsplit = count, rows
            if unsplit:
                count, rows = unsplit, rows_unsplit
            self._rows -= rows
            return [self._waiting.popleft() for _ in range(count)]

    # In the loop again

    def _answer(self, future: asyncio.Future[_Ran]) -> None:
        """Gives the requests of a batch their outputs, or the fault."""
        if future.cancelled():  # the server stops, and waits no longer
            return
        ran = future.result()
        if isinstance(ran.results, Exception):
            error = ran.results
            told = f"model {self.model.source.name!r} fails: {type(error).__name__}: {error}"
            for request in ran.batch:
                if not request.future.done():
                    request.future.set_exception(Fault(Refusal.FAILED, told))
            return
        if ran.batch:
            self.meter.batch(sum(request.rows for request in ran.batch), ran.ended - ran.begun)
        for request, result in zip(ran.batch, ran.results, strict=True):
            self.meter.waited(ran.begun - request.arrived)
            if not request.future.done():  # the caller may have gone
                request.future.set_result(result)


class InWork:
    """The requests of one protocol that are in work.

    Args:
        most: the most of them, which bounds memory.
    """

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Counts a request during the block; Fault if there are too many."""
        if self._count >= self._most:
            raise Fault(
                Refusal.FULL, f"{self._most} requests are in work; valid are these: try again later"
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


Result = TypeVar("Result")

INLINE_BYTES = 1 << 15
"""The most bytes that are parsed or written in the event loop; a thread costs less for more."""


@dataclass
class ServedVersion:
    """A version of a model, loaded or not.

    Attributes:
        source: reads the model.
        batcher: runs it; None if it is not loaded.
        state: READY, LOADING or UNAVAILABLE, as Triton calls them.
        reason: why it is not ready.
    """

    source: Source
    batcher: Batcher | None = None
    state: str = "UNAVAILABLE"
    reason: str = "not loaded yet"


class Repository:
    """The models from the sources that the server was started with, and no others.

    One thread runs the batches of all models, one by one, since a batch uses all cores; another
    thread loads models.
    """

    def __init__(self, sources: Sequence[Source], settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._entries = {(source.name, source.version): ServedVersion(source) for source in sources}
        self._compute = ThreadPoolExecutor(1, "minidnn-batches")
        self._loader = ThreadPoolExecutor(1, "minidnn-loader")
        self._bodies = ThreadPoolExecutor(2, "minidnn-bodies")
        self._loading = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def is_ready(self) -> bool:
        """Whether all models are ready, except those that were unloaded on demand."""
        return all(entry.state == "READY" or not entry.reason for entry in self)

    def __iter__(self) -> Iterator[ServedVersion]:
        return iter(self._entries.values())

    def versions(self, name: str) -> list[ServedVersion]:
        """A model's versions in order; Fault if there is no such model."""
        entries = [entry for key, entry in sorted(self._entries.items()) if key[0] == name]
        if not entries:
            names = {key[0] for key in self._entries}
            hint = did_you_mean(name, names) or ";"
            raise Fault(
                Refusal.NOT_FOUND,
                f"model {name!r:.100} is not served{hint} valid are {', '.join(sorted(names))}",
            )
        return entries

    def entry(self, name: str, version: str = "") -> ServedVersion:
        """A version of a model; without one the newest that is ready, or else the newest."""
        versions = self.versions(name)
        if not version:
            ready = [entry for entry in versions if entry.batcher is not None]
            return (ready or versions)[-1]
        for entry in versions:
            if str(entry.source.version) == version:
                return entry
        valid = ", ".join(str(entry.source.version) for entry in versions)
        raise Fault(
            Refusal.NOT_FOUND, f"model {name!r} has no version {version!r:.40}; valid are {valid}"
        )

    def batcher(self, name: str, version: str = "") -> Batcher:
        """The batcher of a version of a model; Fault if it is not ready."""
        entry = self.entry(name, version)
        if entry.batcher is None:
            raise Fault(
                Refusal.UNAVAILABLE,
                f"model {name!r}, version {entry.source.version}, is not ready: "
                f"{entry.reason or 'it was unloaded'}",
            )
        return entry.batcher

    async def beside(self, call: Callable[[], Result]) -> Result:
        """Runs a call that may take long in a thread, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._bodies, call)

    async def load_all(self) -> None:
        """Loads all models; raises the fault of the first that fails."""
        for name in dict.fromkeys(key[0] for key in self._entries):
            await self.load(name)

    async def load(self, name: str) -> None:
        """Reads all versions of a model anew, and replaces them.

        The old model serves until the new one is ready, answers the requests that it accepted, and
        stays if loading fails.
        """
        async with self._loading:
            for entry in self.versions(name):
                await self._load(entry)

    async def _load(self, entry: ServedVersion) -> None:
        """Loads a version, and replaces its batcher."""
        loop, source = asyncio.get_running_loop(), entry.source
        if entry.batcher is None:
            entry.state, entry.reason = "LOADING", "it is being loaded"
        try:
            model = await loop.run_in_executor(self._loader, load, source, self.settings.max_batch)
        except Exception as error:
            reason = str(error) or type(error).__name__
            if entry.batcher is None:
                entry.state, entry.reason = "UNAVAILABLE", reason
            is_told = isinstance(error, (MiniDNNError, OSError, MemoryError))
            raise Fault(
                Refusal.INVALID if is_told else Refusal.FAILED,
                f"model {source.name!r}, version {source.version}, cannot be loaded: {reason}",
            ) from error
        old = entry.batcher
        meter = self.metrics.meter(source.name, source.version)
        entry.batcher = Batcher(model, self.settings, self._compute, meter)
        entry.state, entry.reason = "READY", ""
        log.info("model %r, version %s, is ready", source.name, source.version)
        self._leave(old)

    async def unload(self, name: str) -> None:
        """Accepts no more requests for a model; accepted ones are answered."""
        async with self._loading:
            for entry in self.versions(name):
                old, entry.batcher = entry.batcher, None
                entry.state, entry.reason = "UNAVAILABLE", ""
                self._leave(old)

    def _leave(self, batcher: Batcher | None) -> None:
        """Closes a batcher in the background."""
        if batcher is not None:
            task = asyncio.get_running_loop().create_task(batcher.close())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Accepts no more requests, and returns when all accepted ones are answered."""
        for entry in self:
            old, entry.batcher = entry.batcher, None
            entry.state, entry.reason = "UNAVAILABLE", "the server is stopping"
            self._leave(old)
        await asyncio.gather(*self._leaving)
        self._loader.shutdown(wait=False, cancel_futures=True)
        self._bodies.shutdown(wait=False)
        self._compute.shutdown(wait=False, cancel_futures=True)


async def call_now(call: Callable[[], Result]) -> Result:
    """Runs a call in the event loop."""
    return call()
