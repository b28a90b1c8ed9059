"""The switch that fails when anything would be compiled."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from .._forks import ForkLock
from ..errors import CompileError
from ._folders import root, why_not_used

_lock = ForkLock()
_forbidden = 0


@contextlib.contextmanager
def forbid_builds() -> Iterator[None]:
    """Inside, :func:`building_allowed` fails in every thread: only the cache may serve kernels."""
    global _forbidden
    with _lock:
        _forbidden += 1
    try:
        yield
    finally:
        with _lock:
            _forbidden -= 1


def building_allowed(what: str) -> None:
    """Call this before compiling anything.

    Raises:
        CompileError: inside :func:`forbid_builds`, or with ``MINIDNN_NO_COMPILE=1``; names
            ``what`` was about to be compiled.
    """
    cause = building_forbidden()
    if cause is not None:
        refused = why_not_used()
        raise CompileError(
            f"the cache {root()}{f' ({refused})' if refused else ''} lacks {what}, and {cause} "
            "forbids to compile; run once without it to fill the cache"
        )


def building_forbidden() -> str | None:
    """What forbids to compile, or None: then a compiler may be looked for."""
    variable = os.environ.get("MINIDNN_NO_COMPILE", "")
    if variable.lower() not in ("", "0", "false", "no", "off"):
        return f"MINIDNN_NO_COMPILE={variable}"
    return "cache.forbid_builds()" if _forbidden else None
