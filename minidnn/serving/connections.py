"""Limits what clients of REST can make the server hold: heads and bodies that are huge, slow,
compressed, or never end.

:class:`Connection` refuses heads that are too long with an answer, and closes idle and stuck
connections.  :class:`Bodies` reads bodies within limits of memory and time, and decodes HTTP's
content codings, which the protocol's clients use as well.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from minidnn.serving.json_numbers import MOST_HEAD_BYTES as MOST_JSON_BYTES
from minidnn.serving.repository import Repository
from minidnn.serving.rest_infer import LENGTH
from minidnn.serving.settings import Fault, Refusal, invalid


class Unfinished:
    """A budget of memory for incomplete transfers: when it is exceeded, the oldest is given up.

    Honest requests are incomplete for a short time, so that the first to go are those of clients
    that send half a body and wait.

    Args:
        most: the most bytes of all transfers.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self._held: dict[UnfinishedPart, None] = {}  # the oldest first

    def add(self, give_up: Callable[[], None]) -> UnfinishedPart:
        """Adds a transfer that is incomplete from now on.

        ``give_up`` is called, at most once, if others need its memory.
        """
        part = UnfinishedPart(self, give_up)
        self._held[part] = None
        return part

    def changed(self, held: UnfinishedPart, size: int) -> None:
        """Sets the bytes of a transfer; gives up the oldest ones while there are too many."""
        if held not in self._held:  # it was given up
            return
        self.size += size - held.size
        held.size = size
        while self.size > self.most:
            oldest = next(part for part in self._held if part.size)
            self.drop(oldest)
            oldest.give_up()

    def drop(self, held: UnfinishedPart) -> None:
        """Removes a transfer, and its bytes from the count."""
        if held in self._held:
            del self._held[held]
            self.size -= held.size


class UnfinishedPart:
    """A transfer that is incomplete until ``end``, or until the end of a ``with`` block."""

    def __init__(self, owner: Unfinished, give_up: Callable[[], None]) -> None:
        self.give_up = give_up
        self.size = 0
        self._owner = owner

    def holds(self, size: int) -> None:
        """Sets the number of bytes that it has in memory now."""
        self._owner.changed(self, size)

    def end(self) -> None:
        """Ends the transfer: it is complete or failed."""
        self._owner.drop(self)

    def __enter__(self) -> UnfinishedPart:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


MOST_URL_BYTES = 1 << 13
MOST_HEAD_BYTES = 1 << 16
MOST_HEADERS = 128
#: Requests that a client may send ahead of their answers.
MOST_PIPELINED = 16
#: The number of chunks after which a body must have a minimum of bytes per chunk, and the minimum.
_FEW_CHUNKS, LEAST_CHUNK_BYTES = 2048, 16
#: Bytes that are discarded after a refusal, before the connection is aborted.
MOST_DISCARDED_BYTES = 1 << 28


class Connection(HttpToolsProtocol):
    """A connection of uvicorn's, with limits that uvicorn lacks.

    uvicorn waits for ever for the end of a request's head and keeps all of it, accepts any number
    of pipelined requests, and closes in the middle of a body, so that the client sees a reset
    instead of the reason.

    A head must arrive, and an answer must be read, within uvicorn's time for an idle connection.

    Args:
        most: the most connections; beyond, the one whose client is awaited for longest is closed.
        unread: the budget of answers that are not read.
    """

    def __init__(self, *arguments: Any, most: int, unread: Unfinished, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._most, self._unread = most, unread
        self._unread_answer: UnfinishedPart | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: The time since which the server waits for the client; None while the client waits.
        self._waits: float | None = None
        self._discards_input = False  # whether data that arrives is discarded
        self._discarded = 0
        self._in_head = self._in_message = False
        self._head_bytes = self._headers = self._chunks = self._body_bytes = 0
        self._calls = self._silent = 0

    # What asyncio and uvicorn call

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waits = time.monotonic()
        self._await_head()
        if len(self.connections) > self._most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._discards_input:
            self._discarded += len(data)
            if self._discarded > MOST_DISCARDED_BYTES:
                self.transport.abort()
            return
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        before = self._calls
        super().data_received(data)
        # The parser buffers an incomplete header, trailer or chunk extension without a callback.
        self._silent = self._silent + len(data) if self._calls == before else 0
        if self._silent > MOST_HEAD_BYTES:
            self._refuse_head()

    def shutdown(self) -> None:
        if self._discards_input and not self._is_pending():
            self.transport.close()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self.refuse(Refusal.INVALID, f"the request is no HTTP: {msg}")

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_answer is None:
            self._unread_answer = self._unread.add(self.transport.abort)
            size = self.transport.get_write_buffer_size()
            self._unread_answer.holds(size)
            self.loop.call_later(self.timeout_keep_alive, self._not_read, self._unread_answer, size)

    def resume_writing(self) -> None:
        if self._unread_answer is not None:
            self._unread_answer.end()
            self._unread_answer = None
        if self.flow is not None:
            super().resume_writing()

    def _not_read(self, answer: UnfinishedPart, size: int) -> None:
        """Aborts a connection whose client has read nothing of an answer for a while."""
        if self._unread_answer is not answer:
            return
        now = self.transport.get_write_buffer_size()
        if now >= size:
            self.transport.abort()
        else:
            self.loop.call_later(self.timeout_keep_alive, self._not_read, answer, now)

    # What the parser calls

    def on_message_begin(self) -> None:
        self._calls += 1
        if not self._discards_input:
            self._in_head = self._in_message = True
            self._head_bytes = self._headers = self._chunks = self._body_bytes = 0
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._calls += 1
        if self._discards_input:
            return
        super().on_url(url)
        if len(self.url) > MOST_URL_BYTES:
            self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._calls += 1
        if self._discards_input or not self._in_head:  # trailers are ignored
            return
        self._headers += 1
        self._head_bytes += len(name) + len(value)
        if self._headers > MOST_HEADERS or self._head_bytes > MOST_HEAD_BYTES:
            self._refuse_head()
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._calls += 1
        if self._discards_input:
            return
        self._in_head = False
        if len(self.pipeline) >= MOST_PIPELINED:
            self._discards_input = True  # earlier requests are still answered
            return
        self._cancel()
        super().on_headers_complete()
        self.cycle.transport = _Closing(self)

    def on_body(self, body: bytes) -> None:
        self._calls += 1
        if self._discards_input:
            return
        self._chunks += 1
        self._body_bytes += len(body)
        if self._chunks > _FEW_CHUNKS and self._body_bytes < LEAST_CHUNK_BYTES * self._chunks:
            self.refuse(
                Refusal.INVALID,
                f"the body comes in chunks that are too small; valid are {LEAST_CHUNK_BYTES} "
                "bytes on the average",
            )
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._calls += 1
        if not self._discards_input:
            self._in_message = False
            self._waits = None
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self._is_pending():
            self._waits = time.monotonic()
        super().on_response_complete()
        if self._discards_input and not self._is_pending() and not self.transport.is_closing():
            self.close()

    # Ends

    def refuse(self, kind: Refusal, told: str) -> None:
        """Answers a bad request, after the requests before it, and accepts no more."""
        if self._discards_input:
            return
        self._discards_input = True
        if self.cycle is not None and not self.cycle.response_complete:
            has_body = self._in_message and not self._in_head
            if not has_body or self.pipeline:
                if has_body:
                    self.pipeline.popleft()
                return  # on_response_complete closes
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        body = json.dumps({"error": told}).encode()
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        head += "connection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[kind.status] + head.encode() + body)
        self.close()

    def close(self) -> None:
        """Closes the connection once the client has what was written.

        Data that the client still sends is read and discarded: a close with unread data resets the
        connection, and the client may lose the answer.
        """
        if not (self._discards_input or self._in_message):
            self.transport.close()
            return
        self._discards_input = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._cancel()
        self._waits = time.monotonic()
        self._timer = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def _refuse_head(self) -> None:
        """Refuses a head that is too long, with the status for the part that is."""
        if not self._in_head:
            self.refuse(Refusal.INVALID, "trailers or extensions of chunks are too long")
        elif self._headers or len(self.url) <= MOST_URL_BYTES:
            self.refuse(
                Refusal.LONG_HEAD,
                f"the headers are too long; valid are at most {MOST_HEADERS} of "
                f"{MOST_HEAD_BYTES} bytes in all",
            )
        else:
            self.refuse(
                Refusal.LONG_URL, f"the URL is too long; valid are at most {MOST_URL_BYTES} bytes"
            )

    def _make_room(self) -> None:
        """Aborts the connection that the server has waited for longest, or refuses this one."""
        waiting = {
            connection._waits: connection
            for connection in self.connections
            if isinstance(connection, Connection) and connection._waits is not None
        }
        oldest = waiting[min(waiting)]
        if oldest is self:
            self.refuse(Refusal.FULL, f"{self._most} connections are busy: try again later")
        else:
            oldest._waits = None
            oldest.transport.abort()

    def _is_pending(self) -> bool:
        """Whether a request that arrived completely is not answered yet."""
        return bool(self.pipeline) or (
            self.cycle is not None
            and not self.cycle.response_complete
            and not self.cycle.disconnected
        )

    def _await_head(self) -> None:
        """Starts the time in which a head must arrive."""
        self._cancel()
        self._timer = self.loop.call_later(self.timeout_keep_alive, self._too_slow)

    def _too_slow(self) -> None:
        """Closes the connection, as its head did not arrive in time."""
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _cancel(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Closing:
    """The transport that uvicorn's answers write to; its ``close`` is that of the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        self._connection.close()


class Bodies:
    """Reads bodies; those that are incomplete are bounded in memory and time."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._settings = repository.settings
        self._unfinished = Unfinished(self._settings.max_unfinished_bytes)

    async def read(self, request: Request) -> bytearray:
        """The body of an inference request, without its content coding.

        Fault if it is too long or too slow, ClientDisconnect if the client disconnects.
        """
        return await self._read(request, self._most(request))

    async def read_small(self, request: Request) -> bytearray:
        """The body of a request that has no tensors."""
        return await self._read(request, min(MOST_JSON_BYTES, self._settings.max_json_bytes))

    def _most(self, request: Request) -> int:
        """The most bytes of a body, fewer for JSON alone than for JSON with binary tensors."""
        settings = self._settings
        if request.headers.get(LENGTH) is not None:
            return settings.max_request_bytes
        return min(settings.max_json_bytes, settings.max_request_bytes)

    async def _read(self, request: Request, most: int) -> bytearray:
        """Reads and decodes a body of at most ``most`` bytes."""
        coding = coding_of(request.headers.get("content-encoding"))
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > most:
            raise _too_long(most)
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.read_seconds) as timeout:
                with self._unfinished.add(lambda: timeout.reschedule(-1)) as part:
                    async for chunk in request.stream():
                        if len(body) + len(chunk) > most:
                            raise _too_long(most)
                        body += chunk
                        part.holds(len(body))
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


#: A content coding -> zlib's ``wbits`` for its format.
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_CODINGS = ("gzip", "deflate")  # of answers, the preferred one first
#: The bytes that are decompressed at once.
_STEP_BYTES = 1 << 18
LEAST_BYTES = 1024
"""The least bytes of an answer that is compressed."""


def coding_of(content_encoding: str | None) -> str:
    """The content coding of a body, "identity" by default; Fault for an unknown one."""
    coding = (content_encoding or "identity").strip().lower()
    if coding != "identity" and coding not in _WINDOWS:
        raise Fault(
            Refusal.ENCODED,
            f"content-encoding is {coding!r:.40}; valid are gzip, deflate and identity, one of "
            "them",
        )
    return coding


def unpacked(body: bytearray, coding: str, most: int) -> bytearray:
    """Decompresses a body; Fault if it has more than ``most`` bytes, is damaged or cut off."""
    content, rest = bytearray(), memoryview(body)
    while len(rest):
        decompressor = zlib.decompressobj(_window(rest, coding))
        while not decompressor.eof:
            if not len(rest):
                raise invalid(f"the body is no {coding}: it is cut off")
            try:
                content += decompressor.decompress(rest[:_STEP_BYTES], most + 1 - len(content))
            except zlib.error as error:
                raise invalid(f"the body is no {coding}: {error}") from error
            if len(content) > most:
                raise Fault(
                    Refusal.TOO_LARGE,
                    f"the body is too long when it is unpacked; valid are at most {most} bytes",
                )
            used = min(len(rest), _STEP_BYTES)
            used -= len(decompressor.unused_data) + len(decompressor.unconsumed_tail)
            rest = rest[used:]
        # A gzip body may have several members.
    return content


def _window(rest: memoryview, coding: str) -> int:
    """zlib's ``wbits`` for a body: "deflate" means zlib's format, but is often sent raw."""
    window = _WINDOWS[coding]
    is_zlib = len(rest) > 1 and rest[0] & 15 == 8 and (rest[0] << 8 | rest[1]) % 31 == 0
    return -window if coding == "deflate" and not is_zlib else window


def accepted(accept_encoding: str | None) -> str | None:
    """The known coding that a client prefers, gzip on a tie; None if it accepts neither."""
    choices: list[tuple[float, int]] = []
    for offer in (accept_encoding or "").lower().split(",")[:20]:
        name, _, parameter = offer.partition(";")
        key, _, value = parameter.partition("=")
        try:
            quality = float(value) if key.strip() == "q" else 1.0
        except ValueError:
            continue
        if name.strip() in _CODINGS and quality > 0:
            choices.append((-quality, _CODINGS.index(name.strip())))
    return _CODINGS[min(choices)[1]] if choices else None


def packed(body: bytes, coding: str) -> bytes:
    """Compresses a body."""
    compressor = zlib.compressobj(1, wbits=_WINDOWS[coding])
    return compressor.compress(body) + compressor.flush()
