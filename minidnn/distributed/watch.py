"""Ranks that watch each other: when one ends early, all end, within seconds and with its error.

A collective operation whose partner is gone may wait for ever, in a library that cannot be
interrupted.  So every rank holds a connection to rank 0, which nothing else uses, and a thread that
waits for what comes over it.  Whoever ends well says so first.  An exception is told before the
process ends; a process that was killed is known by its connection's end, and one that hangs, or
that the network has lost, by its silence.
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
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeGuard

from minidnn.distributed.rank import DistributedError, RankInfo

_CONNECT_SECONDS = 120.0
_MOST_TEXT = 2000

#: Each rank lets hear of itself so often, and is lost when nothing was heard of it for so long.
ALIVE_SECONDS = 2.0
SILENT_SECONDS = 20.0


_KILLED = "it ended without a word: it was killed, or crashed"
_LEFT = (
    "rank {rank} has ended its training, while others go on, which need it; valid is that all take "
    "as many steps"
)


class _Line:
    """A connection over which JSON goes, an object a line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._file = connection.makefile("rb")
        #: Why there is nothing more to receive.
        self.ended = _KILLED
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """OSError if the other side is gone."""
        with self._lock:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None if the other side is gone, or silent for too long."""
        try:
            line = self._file.readline()
            found = json.loads(line) if line.endswith(b"\n") else None
        except TimeoutError:
            self.ended = (
                f"nothing was heard of it for {SILENT_SECONDS:g} s: it hangs, or the network does"
            )
            return None
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def listen(self) -> None:
        """From now on silence is an end; and sending waits no longer for one that reads nothing."""
        self._connection.settimeout(SILENT_SECONDS)

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

    def __init__(self, place: RankInfo, shared: Any = None) -> None:
        self.place = place
        #: Called before this process ends by an error of its own: what would wait for others.
        self.released: Callable[[], object] = lambda: None
        self._leaving = threading.Event()
        self._lines: dict[int, _Line] = {}
        #: How often all ranks were needed, and of ranks that have left how often until then.
        self._entered = 0
        self._left: dict[int, int] = {}
        self._counting = threading.Lock()
        self.told = shared
        if place.rank == 0:
            self._listen(shared)
        else:
            self._connect()
        for rank, line in self._lines.items():
            threading.Thread(
                target=self._wait, args=(rank, line), name="minidnn-watch", daemon=True
            ).start()
        threading.Thread(target=self._breathe, name="minidnn-alive", daemon=True).start()
        self._hook = sys.excepthook
        sys.excepthook = self._raised
        atexit.register(self.leave)

    def enter(self) -> None:
        """Something begins for which all ranks are needed; DistributedError if one has left."""
        with self._counting:
            self._entered += 1
            gone = self._gone()
        if gone is not None:
            raise DistributedError(_LEFT.format(rank=gone))

    def _gone(self) -> int | None:
        """A rank that has left before what this one has begun."""
        return next((rank for rank, count in self._left.items() if count < self._entered), None)

    def leave(self) -> None:
        """Tells the others that this rank ends well."""
        if not self._leaving.is_set():
            self._leaving.set()
            self._tell({"ends": self.place.rank, "entered": self._entered})

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
                self._lines[rank] = line
        for line in self._lines.values():
            line.listen()
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
        line.listen()
        self.told = answer["shared"]
        self._lines[0] = line

    def _wait(self, rank: int, line: _Line) -> None:
        while (message := line.receive()) is not None and "failed" not in message:
            if "ends" in message and self._has_left(message, rank):
                return
        if self._leaving.is_set():
            return
        if message is None:
            message = {"rank": rank, "failed": line.ended}
        self._fail(message)

    def _has_left(self, message: dict[str, Any], rank: int) -> bool:
        """Notes that a rank ends well; whether it is the one at the other end of the line."""
        other = int(message["ends"])
        with self._counting:
            self._left[other] = int(message["entered"])
            gone = self._gone()
        if self._leaving.is_set():
            return other == rank
        if self.place.rank == 0:
            self._tell(message, but=other)
        if gone is not None:  # it waits for that rank already
            self._fail({"rank": self.place.rank, "failed": _LEFT.format(rank=gone)})
        return other == rank

    def _breathe(self) -> None:
        while not self._leaving.wait(ALIVE_SECONDS):
            self._tell({"alive": True})

    def _fail(self, message: dict[str, Any]) -> None:
        self._leaving.set()
        self._tell(message)  # by rank 0 to all others
        self._end(message)

    def _tell(self, message: dict[str, Any], but: int | None = None) -> None:
        for rank, line in self._lines.items():
            if rank != but:
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
        with suppress(Exception):
            self.released()
