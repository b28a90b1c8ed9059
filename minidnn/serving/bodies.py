"""Reading bodies of requests that may be huge, slow, packed, or never end."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from minidnn.serving.compression import coding_of, unpacked
from minidnn.serving.connections import Unfinished
from minidnn.serving.faults import Fault, Refusal
from minidnn.serving.json_numbers import MOST_HEAD_BYTES
from minidnn.serving.repository import Repository
from minidnn.serving.rest_infer import LENGTH

__all__ = ["Bodies", "ClientDisconnect"]


class Bodies:
    """Reads bodies, so that what has not arrived whole is bounded in memory and time."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._settings = repository.settings
        self._unfinished = Unfinished(self._settings.max_unfinished_bytes)

    async def read(self, request: Request) -> bytearray:
        """The body of an inference request, without its content coding.

        Fault if it is too long or too slow, ClientDisconnect if its client goes away.
        """
        return await self._read(request, self._most(request))

    async def read_small(self, request: Request) -> bytearray:
        """The body of a request that has no tensors."""
        return await self._read(request, min(MOST_HEAD_BYTES, self._settings.max_json_bytes))

    def _most(self, request: Request) -> int:
        """JSON alone may have fewer bytes than JSON with binary tensors."""
        settings = self._settings
        if request.headers.get(LENGTH) is not None:
            return settings.max_request_bytes
        return min(settings.max_json_bytes, settings.max_request_bytes)

    async def _read(self, request: Request, most: int) -> bytearray:
        coding = coding_of(request.headers.get("content-encoding"))
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > most:
            raise _too_long(most)
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.read_seconds) as timeout:
                with self._unfinished.add(lambda: timeout.reschedule(-1)) as held:
                    async for chunk in request.stream():
                        if len(body) + len(chunk) > most:
                            raise _too_long(most)
                        body += chunk
                        held.holds(len(body))
        except TimeoutError as error:
            raise Fault(
                Refusal.SLOW,
                f"the body did not arrive within {self._settings.read_seconds:g} seconds, or "
                "others needed the memory of it",
            ) from error
        if coding == "identity":
            return body
        return await self._repository.beside(lambda: unpacked(body, coding, most))


def _too_long(most: int) -> Fault:
    return Fault(
        Refusal.TOO_LARGE,
        f"the body is too long; valid are at most {most} bytes, and more only for binary tensors",
    )
