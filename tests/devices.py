"""Which devices tests can use here."""

from __future__ import annotations

from minidnn.backends.backend import get_backend
from minidnn.errors import DeviceError


def unavailable(name: str) -> str | None:
    """Why a device cannot be used here; None if it can."""
    try:
        get_backend(name)
    except DeviceError as error:
        return str(error)
    return None
