"""Places for calls that are read: those that wait take one from a call that does not go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from minidnn.serving.faults import Fault, Refusal

GRACE_SECONDS = 0.1
"""For which a call keeps its place, though others wait."""


class CallSlots:
    """So many calls are read at once.

    A call whose message does not come keeps its place while nobody needs it, and loses it to others
    after a moment: half-open calls keep nobody out.

    Args:
        most: calls that are read; four times as many wait.
        seconds: for which a call is read at most.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._taken: dict[asyncio.Timeout, float] = {}  # since when; the oldest first
        self._waiting = 0
        self._left = asyncio.Event()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A place for what the block reads; Fault if that takes too long or others need it."""
        loop = asyncio.get_running_loop()
        if len(self._taken) >= self._most:
            await self._wait()
        try:
            async with asyncio.timeout(self._seconds) as timeout:
                self._taken[timeout] = loop.time()
                try:
                    yield
                finally:
                    self._taken.pop(timeout, None)
                    self._left.set()
        except TimeoutError as error:
            raise Fault(
                Refusal.SLOW,
                f"the message did not arrive within {self._seconds:g} seconds, or others needed "
                "its place",
            ) from error

    async def _wait(self) -> None:
        if self._waiting >= 4 * self._most:
            raise Fault(Refusal.FULL, "too many calls wait to be read: try again later")
        self._waiting += 1
        loop = asyncio.get_running_loop()
        try:
            while len(self._taken) >= self._most:
                oldest, since = next(iter(self._taken.items()))
                left = since + GRACE_SECONDS - loop.time()
                if left <= 0:
                    del self._taken[oldest]
                    oldest.reschedule(-1)
                    return
                self._left.clear()
                try:
                    async with asyncio.timeout(left):
                        await self._left.wait()
                except TimeoutError:
                    pass
        finally:
            self._waiting -= 1
