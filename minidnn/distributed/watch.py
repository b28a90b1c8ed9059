"""Ranks that watch each other: when one ends early, all end, within seconds and with its error.

A collective operation whose partner is gone may wait for ever, in a library that cannot be
interrupted.  So every rank holds a connection to rank 0, which nothing else uses, and a thread that
waits for what comes over it.  Whoever ends well says so first.  An exception is told before the
process ends; a process that was killed is known by its connection's end.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeGuard

from minidnn.distributed.faults import DistributedError
from minidnn.distributed.place import RankPlace

_CONNECT_SECONDS = 120.0
_MOST_TEXT = 2000


class _Line:
    """A connection over which JSON goes, an object a line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A machine that vanishes says nothing: ask after 5 seconds, five times.
        for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 5)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connection = connection
        self._file = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """OSError if the other side is gone."""
        with self._lock:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None if the other side is gone."""
        try:
            line = self._file.readline()
            found = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def close(self) -> None:
        self._file.close()
        self._connection.close()


class RankWatch:
    """Connects all ranks, and ends this process when one of them ends early.

    Args:
        place: of this process.
        shared: what rank 0 tells all others, as JSON has it.

    Attributes:
        told: what rank 0 told.

    Raises:
        DistributedError: the ranks did not find each other within two minutes.
    """

    def __init__(self, place: RankPlace, shared: Any = None) -> None:
        self.place = place
        self._leaving = threading.Event()
        self._lines: dict[int, _Line] = {}
        self.told = shared
        if place.rank == 0:
            self._listen(shared)
        else:
            self._connect()
        for rank, line in self._lines.items():
            threading.Thread(
                target=self._wait, args=(rank, line), name="minidnn-watch", daemon=True
            ).start()
        self._hook = sys.excepthook
        sys.excepthook = self._raised
        atexit.register(self.leave)

    def leave(self) -> None:
        """Tells the others that this rank ends well."""
        if not self._leaving.is_set():
            self._leaving.set()
            self._tell({"ends": True})

    def fail(self, text: str) -> None:
        """Tells the others why this rank ends."""
        self._leaving.set()
        self._tell({"failed": text[-_MOST_TEXT:], "rank": self.place.rank})

    def _listen(self, shared: Any) -> None:
        place = self.place
        deadline = time.monotonic() + _CONNECT_SECONDS
        try:
            server = socket.create_server((place.host, place.port), backlog=place.size)
        except OSError as error:
            raise DistributedError(
                f"rank 0 cannot listen at {place.host}, port {place.port}: {error.strerror}; "
                "MASTER_PORT names another (the one before it)"
            ) from error
        with server:
            while len(self._lines) < place.size - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    missing = sorted({*range(1, place.size)} - {*self._lines})
                    raise DistributedError(
                        f"no rank {', '.join(map(str, missing))} came to {place.host}, port "
                        f"{place.port}, within {_CONNECT_SECONDS:.0f} s"
                    ) from None
                connection.settimeout(10)
                line = _Line(connection)
                hello = line.receive() or {}
                rank = hello.get("rank")
                if hello.get("size") != place.size or not self._is_missing(rank):
                    line.close()  # somebody else's
                    continue
                connection.settimeout(None)
                self._lines[rank] = line
        for line in self._lines.values():
            line.send({"shared": shared})

    def _is_missing(self, rank: object) -> TypeGuard[int]:
        return type(rank) is int and 0 < rank < self.place.size and rank not in self._lines

    def _connect(self) -> None:
        place = self.place
        deadline = time.monotonic() + _CONNECT_SECONDS
        while True:
            try:
                connection = socket.create_connection((place.host, place.port), 5)
                line = _Line(connection)
                line.send({"rank": place.rank, "size": place.size})
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                answer = line.receive()
                if answer is not None and "shared" in answer:
                    break
                reason = "it hung up"
                line.close()
            except OSError as error:
                reason = error.strerror or str(error)
            if time.monotonic() > deadline:
                raise DistributedError(
                    f"rank {place.rank} found no rank 0 at {place.host}, port {place.port}, within "
                    f"{_CONNECT_SECONDS:.0f} s: {reason}"
                )
            time.sleep(0.05)
        connection.settimeout(None)
        self.told = answer["shared"]
        self._lines[0] = line

    def _wait(self, rank: int, line: _Line) -> None:
        message = line.receive()
        if message is not None and "ends" in message:
            return
        if self._leaving.is_set():
            return
        if message is None:
            message = {"rank": rank, "failed": "it ended without a word: it was killed, or crashed"}
        self._leaving.set()
        self._tell(message)  # by rank 0 to all others
        self._end(message)

    def _tell(self, message: dict[str, Any]) -> None:
        for line in self._lines.values():
            with suppress(OSError):  # it is gone, which is known or soon will be
                line.send(message)

    def _end(self, message: dict[str, Any]) -> None:
        print(
            f"minidnn: rank {self.place.rank} ends, since rank {message.get('rank')} failed: "
            f"{message.get('failed')}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)  # the main thread may wait in a collective operation, for ever

    def _raised(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Told before anything is printed: others may wait for this rank."""
        self.fail("".join(traceback.format_exception_only(kind, error)).strip())
        self._hook(kind, error, trace)
