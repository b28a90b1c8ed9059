"""Bodies of requests that may be huge, slow, packed, or never end, and HTTP's content codings.

The protocol's clients use these, too.
"""

from __future__ import annotations

import asyncio
import zlib

from starlette.requests import ClientDisconnect, Request

from minidnn.serving.connections import Unfinished
from minidnn.serving.faults import Fault, Refusal, invalid
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


#: A content coding -> how zlib calls its format.
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_STEP_BYTES = 1 << 18
LEAST_BYTES = 1024
"""Of answers that are compressed."""


def coding_of(content_encoding: str | None) -> str:
    """The coding of a body, or "identity"; Fault if it is none that is known."""
    coding = (content_encoding or "identity").strip().lower()
    if coding != "identity" and coding not in _WINDOWS:
        raise Fault(
            Refusal.ENCODED,
            f"content-encoding is {coding!r:.40}; valid are gzip, deflate and identity, one of "
            "them",
        )
    return coding


def unpacked(body: bytearray, coding: str, most: int) -> bytearray:
    """A body without its coding; Fault if it is longer than ``most`` bytes, damaged or cut off."""
    found, rest = bytearray(), memoryview(body)
    while len(rest):
        engine = zlib.decompressobj(_window(rest, coding))
        while not engine.eof:
            if not len(rest):
                raise invalid(f"the body is no {coding}: it is cut off")
            try:
                found += engine.decompress(rest[:_STEP_BYTES], most + 1 - len(found))
            except zlib.error as error:
                raise invalid(f"the body is no {coding}: {error}") from error
            if len(found) > most:
                raise Fault(
                    Refusal.TOO_LARGE,
                    f"the body is too long when it is unpacked; valid are at most {most} bytes",
                )
            used = min(len(rest), _STEP_BYTES)
            used -= len(engine.unused_data) + len(engine.unconsumed_tail)
            rest = rest[used:]
        # Members of gzip may follow each other.
    return found


def _window(rest: memoryview, coding: str) -> int:
    """How zlib calls the format; "deflate" is zlib's own by its definition, and often sent bare."""
    window = _WINDOWS[coding]
    is_zlib = len(rest) > 1 and rest[0] & 15 == 8 and (rest[0] << 8 | rest[1]) % 31 == 0
    return -window if coding == "deflate" and not is_zlib else window


def accepted(accept_encoding: str | None) -> str | None:
    """The coding that a client prefers, of those that are known; None for none."""
    found: list[tuple[float, str]] = []
    for each in (accept_encoding or "").lower().split(",")[:20]:
        name, _, parameter = each.partition(";")
        key, _, value = parameter.partition("=")
        try:
            quality = float(value) if key.strip() == "q" else 1.0
        except ValueError:
            continue
        if name.strip() in ("gzip", "deflate") and quality > 0:
            found.append((-quality, {"gzip": "0"}.get(name.strip(), "1")))
    return ("gzip", "deflate")[int(min(found)[1])] if found else None


def packed(body: bytes, coding: str) -> bytes:
    """A body in a coding."""
    engine = zlib.compressobj(1, wbits=_WINDOWS[coding])
    return engine.compress(body) + engine.flush()
