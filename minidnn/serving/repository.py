"""The models of a server, by name and version: loading, exchanging and finding them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from minidnn.errors import MiniDNNError, did_you_mean
from minidnn.serving.batching import Batcher
from minidnn.serving.faults import Fault, Refusal
from minidnn.serving.metrics import Metrics
from minidnn.serving.model import Source, load
from minidnn.serving.settings import Settings

log = logging.getLogger(__name__)

Result = TypeVar("Result")

INLINE_BYTES = 1 << 15
"""Of what is read or written at once: more holds up the loop longer than a thread costs."""


@dataclass
class ServedVersion:
    """A version of a model.

    Attributes:
        batcher: runs it; None if it is not loaded.
        state: READY, LOADING or UNAVAILABLE, as Triton calls them.
        reason: why it is not ready.
    """

    source: Source
    batcher: Batcher | None = None
    state: str = "UNAVAILABLE"
    reason: str = "not loaded yet"


class Repository:
    """Models from the sources that the server was started with, and from no others.

    A batch uses all cores, so that one thread runs the batches of all models, in turn; another one
    loads.
    """

    def __init__(self, sources: Sequence[Source], settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._entries = {(each.name, each.version): ServedVersion(each) for each in sources}
        self._compute = ThreadPoolExecutor(1, "minidnn-batches")
        self._loader = ThreadPoolExecutor(1, "minidnn-loader")
        self._bodies = ThreadPoolExecutor(2, "minidnn-bodies")
        self._loading = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def is_ready(self) -> bool:
        """Whether all models are ready, those apart that were unloaded on demand."""
        return all(entry.state == "READY" or not entry.reason for entry in self)

    def __iter__(self) -> Iterator[ServedVersion]:
        return iter(self._entries.values())

    def versions(self, name: str) -> list[ServedVersion]:
        """A model's versions in order; Fault if there is no such model."""
        found = [entry for key, entry in sorted(self._entries.items()) if key[0] == name]
        if not found:
            names = {key[0] for key in self._entries}
            hint = did_you_mean(name, names) or ";"
            raise Fault(
                Refusal.NOT_FOUND,
                f"model {name!r:.100} is not served{hint} valid are {', '.join(sorted(names))}",
            )
        return found

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
        """What runs a model; Fault if it is not ready."""
        entry = self.entry(name, version)
        if entry.batcher is None:
            raise Fault(
                Refusal.UNAVAILABLE,
                f"model {name!r}, version {entry.source.version}, is not ready: "
                f"{entry.reason or 'it was unloaded'}",
            )
        return entry.batcher

    async def beside(self, call: Callable[[], Result]) -> Result:
        """What a call gives that may take long, made beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._bodies, call)

    async def load_all(self) -> None:
        """Loads all models; raises what the first that fails raises."""
        for name in dict.fromkeys(key[0] for key in self._entries):
            await self.load(name)

    async def load(self, name: str) -> None:
        """Reads a model anew, in all its versions, and exchanges it: requests that were taken are
        answered by the old one, which serves until the new one is ready, and on if that fails.
        """
        async with self._loading:
            for entry in self.versions(name):
                await self._load(entry)

    async def _load(self, entry: ServedVersion) -> None:
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
        """Takes no more requests for a model; those that were taken are answered."""
        async with self._loading:
            for entry in self.versions(name):
                old, entry.batcher = entry.batcher, None
                entry.state, entry.reason = "UNAVAILABLE", ""
                self._leave(old)

    def _leave(self, batcher: Batcher | None) -> None:
        if batcher is not None:
            task = asyncio.get_running_loop().create_task(batcher.close())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Ends when all that was taken is answered; nothing more is taken."""
        for entry in self:
            old, entry.batcher = entry.batcher, None
            entry.state, entry.reason = "UNAVAILABLE", "the server is stopping"
            self._leave(old)
        await asyncio.gather(*self._leaving)
        self._loader.shutdown(wait=False, cancel_futures=True)
        self._bodies.shutdown(wait=False)
        self._compute.shutdown(wait=False, cancel_futures=True)


async def call_now(call: Callable[[], Result]) -> Result:
    """What a call gives, made in the loop."""
    return call()
