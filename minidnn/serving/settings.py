"""What a server is told when it starts, and what it refuses requests with.

Refusals are in words of both protocols.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from minidnn.errors import MiniDNNError

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Settings:
    """Limits, addresses and secrets.

    Attributes:
        host: the address that is listened on.
        port, grpc_port: 0 is any free one; without ``grpc_port`` there is no gRPC.
        max_batch: rows of a batch.
        max_delay: seconds for which the first row of a batch waits for others.
        max_queue: rows that wait for each model.
        max_requests: whole requests that wait or are computed at once, of each protocol.
        max_request_bytes: of one request's body, unpacked, or message.
        max_json_bytes: of a body's JSON, or of a message without raw tensors.
        read_seconds: for which a request may take to arrive.
        stop_seconds: for which requests that were taken may take when the server stops.
        certificate, key: files of TLS, both or neither.
        token: what callers must show, if anything.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001
    max_batch: int = 8
    max_delay: float = 0.005
    max_queue: int = 64
    max_requests: int = 64
    max_request_bytes: int = 32 * MEBIBYTE
    max_json_bytes: int = 4 * MEBIBYTE
    read_seconds: float = 30.0
    stop_seconds: float = 30.0
    certificate: str | None = None
    key: str | None = None
    token: str | None = None

    @property
    def max_unfinished_bytes(self) -> int:
        """What bodies that have not arrived whole, and answers that are not read, may hold in
        memory: as much as a quarter of the requests in work."""
        return max(2, self.max_requests // 4) * self.max_request_bytes

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class Refusal(Enum):
    """Why a request is refused: REST's status, and the name of gRPC's."""

    INVALID = (400, "INVALID_ARGUMENT")
    UNAUTHORIZED = (401, "UNAUTHENTICATED")
    FORBIDDEN = (403, "PERMISSION_DENIED")
    NOT_FOUND = (404, "NOT_FOUND")
    NOT_ALLOWED = (405, "UNIMPLEMENTED")
    SLOW = (408, "DEADLINE_EXCEEDED")
    TOO_LARGE = (413, "RESOURCE_EXHAUSTED")
    LONG_URL = (414, "INVALID_ARGUMENT")
    ENCODED = (415, "UNIMPLEMENTED")
    FULL = (429, "RESOURCE_EXHAUSTED")
    LONG_HEAD = (431, "INVALID_ARGUMENT")
    FAILED = (500, "INTERNAL")
    UNAVAILABLE = (503, "UNAVAILABLE")

    @property
    def status(self) -> int:
        return self.value[0]

    @property
    def code(self) -> str:
        return self.value[1]


class Fault(MiniDNNError):
    """A request that is refused."""

    def __init__(self, kind: Refusal, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def invalid(message: str) -> Fault:
    """The fault of a request that is wrong by itself."""
    return Fault(Refusal.INVALID, message)
