"""Connections of REST: those that send half a request are closed."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_HEAD_BYTES = 1 << 16


class Connection(HttpToolsProtocol):
    """uvicorn's, which waits for the end of a request's head for ever and keeps all of it.

    The time is that for which uvicorn keeps an idle connection.
    """

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        waits = self._timer is not None
        super().data_received(data)
        if waits and self._timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                self.transport.abort()

    def on_headers_complete(self) -> None:
        self._cancel()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._timer = self.loop.call_later(self.timeout_keep_alive, self._too_slow)

    def _too_slow(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
