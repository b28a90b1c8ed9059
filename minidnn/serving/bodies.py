"""Reading bodies of requests that may be huge, slow, or never end."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from minidnn.serving.faults import Fault, Refusal
from minidnn.serving.settings import Settings

__all__ = ["ClientDisconnect", "read_body"]


async def read_body(request: Request, settings: Settings) -> bytes:
    """A body; Fault if it is too long or too slow, ClientDisconnect if its client goes away."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise Fault(
            Refusal.ENCODED, f"content-encoding is {encoding!r:.40}; valid is a body as it is"
        )
    most = settings.max_request_bytes
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > most:
        raise _too_long(most)
    body = bytearray()
    try:
        async with asyncio.timeout(settings.read_seconds):
            async for chunk in request.stream():
                if len(body) + len(chunk) > most:
                    raise _too_long(most)
                body += chunk
    except TimeoutError as error:
        raise Fault(
            Refusal.SLOW, f"the body did not arrive within {settings.read_seconds:g} seconds"
        ) from error
    return bytes(body)


def _too_long(most: int) -> Fault:
    return Fault(Refusal.TOO_LARGE, f"the body is too long; valid are at most {most} bytes")
