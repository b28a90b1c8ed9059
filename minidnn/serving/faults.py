"""What a request is refused with, in words of both protocols."""

from __future__ import annotations

from enum import Enum

from minidnn.errors import MiniDNNError


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
