"""Which rank a process is, and how ranks check and watch each other.

A rank reads its number from the environment variables of the program that started it.  Ranks
compare the programs that they run, which must be the same, and watch each other: when one ends
early, all end, within seconds and with its error.

A collective operation may wait for ever for a rank that is gone, in a library that cannot be
interrupted.  So every rank has a connection to rank 0, which nothing else uses, and a thread that
receives from it.  A rank that ends regularly says so first.  A rank that raises sends its exception
before it ends; a killed process is detected by the end of its connection, and one that hangs, or
that the network has lost, by its silence.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeGuard

from minidnn.errors import MiniDNNError


class DistributedError(MiniDNNError, RuntimeError):
    """Processes cannot train together: their number is not known, or one of them is gone."""


#: Added to a launcher's MASTER_PORT, on which torchrun itself listens.
_BEHIND = 1
_PORT = 29400
_STARTERS = "torchrun, mpirun, srun (Slurm) and minidnn launch"


@dataclass(frozen=True)
class RankInfo:
    """A process among those that train together.

    Attributes:
        rank: its number, from 0 to ``size`` - 1.
        size: the number of processes.
        local_rank: its number among those of its machine, which is its GPU's.
        host, port: where rank 0 listens.
    """

    rank: int
    size: int
    local_rank: int
    host: str
    port: int


#: The variables for rank, size and local rank of each launcher; the first that is set counts.
_NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}


def find_rank(environment: Mapping[str, str] = os.environ) -> RankInfo:
    """Returns the rank that a launcher gave this process in its environment.

    DistributedError if the variables are missing or make no sense.
    """
    for launcher, names in _NAMES.items():
        if names[0] in environment and names[1] in environment:
            rank, size, local = (_number(environment, name, launcher) for name in names)
            if not 0 <= rank < size:
                raise DistributedError(
                    f"{names[0]}={rank} and {names[1]}={size}; valid are ranks from 0 to the size "
                    "less 1"
                )
            return RankInfo(rank, size, local, *_address(environment, launcher, size))
    raise DistributedError(
        "distributed=True: no variable says which process this is and of how many; valid is to "
        f"start it by {_STARTERS}"
    )


def _number(environment: Mapping[str, str], name: str, starter: str) -> int:
    text = environment.get(name)
    if text is None or not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise DistributedError(f"{name}={text!r}, as {starter} says; valid is an integer from 0")
    return int(text)


def _address(environment: Mapping[str, str], starter: str, size: int) -> tuple[str, int]:
    """The host and port at which rank 0 listens."""
    port = _PORT
    if "MASTER_PORT" in environment:
        port = _number(environment, "MASTER_PORT", starter) + _BEHIND
    elif "SLURM_JOB_ID" in environment:
        port += _number(environment, "SLURM_JOB_ID", starter) % 20_000  # jobs may share a machine
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"], port
    if starter == "Slurm" and (nodes := environment.get("SLURM_STEP_NODELIST")):
        return _first_node(nodes), port
    local_sizes = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE")
    if any(environment.get(name) == str(size) for name in local_sizes):
        return "127.0.0.1", port
    raise DistributedError(
        f"MASTER_ADDR is not set, and {starter} does not say where rank 0 is; valid is its host's "
        "name, passed on to every process (mpirun -x MASTER_ADDR)"
    )


def _first_node(nodes: str) -> str:
    """``gpu[07-09,12],login`` -> ``gpu07``."""
    match = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\])?", nodes)
    if match is None:
        raise DistributedError(f"SLURM_STEP_NODELIST={nodes!r}; valid is a list of hosts")
    return match[1] + (match[2] or "")


class ConsensusCheck:
    """The base class of process groups; it compares texts over all ranks, each text once."""

    place: RankInfo
    watch: RankWatch

    def __init__(self) -> None:
        self._texts: set[str] = set()

    @property
    def size(self) -> int:
        """See :class:`RankGroup`."""
        return self.place.size

    def enter(self) -> None:
        """See :class:`RankGroup`."""
        self.watch.enter()

    def sum_of(self, numbers: Sequence[float]) -> list[float]:
        """See :class:`RankGroup`."""
        raise NotImplementedError

    def agree(self, text: str) -> None:
        """See :class:`RankGroup`."""
        if text in self._texts:
            return
        digest = hashlib.sha256(text.encode()).digest()
        parts = [int.from_bytes(digest[i : i + 3]) for i in range(0, 30, 3)]
        # A rank whose number is the mean of all may pass wrongly; then another rank fails.
        if self.sum_of(parts) != [self.size * part for part in parts]:
            raise DistributedError(
                f"rank {self.place.rank} trains by another program than the others; valid are the "
                "same network, shapes, options and version in all ranks. Its sums over ranks are\n"
                f"{text}"
            )
        self._texts.add(text)


_CONNECT_SECONDS = 120.0
_MOST_TEXT = 2000

#: The interval at which a rank sends a sign of life, and the silence after which it is lost.
ALIVE_SECONDS = 2.0
SILENT_SECONDS = 20.0


_KILLED = "it ended without a word: it was killed, or crashed"
_LEFT = (
    "rank {rank} has ended its training, while others go on, which need it; valid is that all take "
    "as many steps"
)


class _Line:
    """A socket connection that carries JSON, one object on each line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._file = connection.makefile("rb")
        #: Why :meth:`receive` returned None.
        self.ended = _KILLED
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message; OSError if the other side is gone."""
        with self._lock:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Returns the next message; None if the other side is gone, or silent for too long."""
        try:
            line = self._file.readline()
            message = json.loads(line) if line.endswith(b"\n") else None
        except TimeoutError:
            self.ended = (
                f"nothing was heard of it for {SILENT_SECONDS:g} s: it hangs, or the network does"
            )
            return None
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def listen(self) -> None:
        """Sets the timeout: from now on silence is an end, and sending does not block for ever."""
        self._connection.settimeout(SILENT_SECONDS)

    def close(self) -> None:
        self._file.close()
        self._connection.close()


class RankWatch:
    """Connects all ranks, and ends this process when one of them ends early.

    Args:
        place: the rank of this process.
        shared: a JSON value that rank 0 sends to all others.

    Attributes:
        told: the value that rank 0 sent.

    Raises:
        DistributedError: the ranks did not find each other within two minutes.
    """

    def __init__(self, place: RankInfo, shared: Any = None) -> None:
        self.place = place
        #: Called before this process ends by its own error: aborts operations that wait for others.
        self.released: Callable[[], object] = lambda: None
        self._leaving = threading.Event()
        self._lines: dict[int, _Line] = {}
        #: The number of calls of :meth:`enter`; and for each rank that has left, its number then.
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
        threading.Thread(target=self._send_heartbeats, name="minidnn-alive", daemon=True).start()
        self._hook = sys.excepthook
        sys.excepthook = self._raised
        atexit.register(self.leave)

    def enter(self) -> None:
        """Begins work that needs all ranks; DistributedError if one has left."""
        with self._counting:
            self._entered += 1
            gone = self._gone()
        if gone is not None:
            raise DistributedError(_LEFT.format(rank=gone))

    def _gone(self) -> int | None:
        """A rank that has left before the work that this one has begun; None if there is none."""
        return next((rank for rank, count in self._left.items() if count < self._entered), None)

    def leave(self) -> None:
        """Tells the others that this rank ends regularly."""
        if not self._leaving.is_set():
            self._leaving.set()
            self._tell({"ends": self.place.rank, "entered": self._entered})

    def fail(self, text: str) -> None:
        """Tells the others why this rank ends."""
        self._leaving.set()
        self._tell({"failed": text[-_MOST_TEXT:], "rank": self.place.rank})

    def _listen(self, shared: Any) -> None:
        """Accepts the connections of all other ranks, in rank 0."""
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
                    line.close()  # not a rank of this training
                    continue
                self._lines[rank] = line
        for line in self._lines.values():
            line.listen()
            line.send({"shared": shared})

    def _is_missing(self, rank: object) -> TypeGuard[int]:
        return type(rank) is int and 0 < rank < self.place.size and rank not in self._lines

    def _connect(self) -> None:
        """Connects to rank 0, in another rank."""
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
        """Receives from a rank, in a thread, until it leaves or fails."""
        while (message := line.receive()) is not None and "failed" not in message:
            if "ends" in message and self._has_left(message, rank):
                return
        if self._leaving.is_set():
            return
        if message is None:
            message = {"rank": rank, "failed": line.ended}
        self._fail(message)

    def _has_left(self, message: dict[str, Any], rank: int) -> bool:
        """Notes that a rank has left.  Returns whether it is the one at the line's other end."""
        other = int(message["ends"])
        with self._counting:
            self._left[other] = int(message["entered"])
            gone = self._gone()
        if self._leaving.is_set():
            return other == rank
        if self.place.rank == 0:
            self._tell(message, but=other)
        if gone is not None:  # this rank waits for that one already
            self._fail({"rank": self.place.rank, "failed": _LEFT.format(rank=gone)})
        return other == rank

    def _send_heartbeats(self) -> None:
        """Sends signs of life, in a thread."""
        while not self._leaving.wait(ALIVE_SECONDS):
            self._tell({"alive": True})

    def _fail(self, message: dict[str, Any]) -> None:
        """Passes a failure on, and ends this process."""
        self._leaving.set()
        self._tell(message)  # rank 0 reaches all others
        self._end(message)

    def _tell(self, message: dict[str, Any], but: int | None = None) -> None:
        """Sends a message over all connections but one."""
        for rank, line in self._lines.items():
            if rank != but:
                with suppress(OSError):  # that rank is gone, which is noticed elsewhere
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
        """The exception hook: tells the others first, since they may wait for this rank."""
        self.fail("".join(traceback.format_exception_only(kind, error)).strip())
        self._hook(kind, error, trace)
        with suppress(Exception):
            self.released()
