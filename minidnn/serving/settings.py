"""The settings of a server, and the kinds of refusals of requests, for both protocols."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from minidnn.errors import MiniDNNError

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Settings:
    """Limits, addresses and secrets.

    Attributes:
        host: the address that the server listens on.
        port, grpc_port: 0 is any free port; without ``grpc_port`` there is no gRPC.
        max_batch: the most rows of a batch.
        max_delay: seconds for which the first request of a batch waits for others.
        max_queue: the most rows that wait for each model.
        max_requests: the most complete requests that wait or are computed at once, per protocol.
        max_request_bytes: the most bytes of a request's decompressed body, or of its message.
        max_json_bytes: the most bytes of a body's JSON, or of a message without raw tensors.
        read_seconds: the time in which a request must arrive.
        stop_seconds: the time that accepted requests have when the server stops.
        certificate, key: PEM files for TLS, both or neither.
        token: the secret that callers must send; None for none.
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
        """The most memory of incomplete bodies, and as much of unread answers: that of a quarter of
        ``max_requests`` requests, but at least of two."""
        return max(2, self.max_requests // 4) * self.max_request_bytes

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class Refusal(Enum):
    """The kinds of refusals of requests, with their status in REST and the name of gRPC's."""

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
    """The error of a request that is refused, with the kind of the refusal."""

    def __init__(self, kind: Refusal, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def invalid(message: str) -> Fault:
    """The fault of a request that is not valid."""
    return Fault(Refusal.INVALID, message)
