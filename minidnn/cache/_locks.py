"""Who builds what the cache lacks: one process at a time, and none where that is forbidden.

Processes take turns by locks that only this user can hold, and never wait in silence.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .._forks import ForkLock
from ..errors import CompileError
from ._folders import release, root, try_lock, why_not_used
from ._trust import open_folder

log = logging.getLogger("minidnn.cache")

SAY_SECONDS = 1.0
"""After which somebody who waits says for whom."""
_POLL_SECONDS = 0.01


@contextmanager
def one_at_a_time(
    name: str,
    doing: str,
    limit: float,
    *,
    wait: Callable[[str], None] | None = None,
    alive: Callable[[], object] | None = None,
) -> Iterator[bool]:
    """Lets one process (or thread) at a time into its body.

    Nobody waits where the cache folder cannot be written or files cannot be locked.

    Args:
        name: of the lock, as "ispc-build".
        doing: what is done in turns, for messages, as "compiles kernels".
        limit: seconds after which a turn that has not come is no longer waited for.
        wait: called once with the message about who is waited for; by default it is logged.
        alive: what it gives changes while whoever has the turn gets on: ``limit`` begins anew then.

    Yields:
        Whether no other process is in the body: False if ``limit`` has passed, which is logged.
    """
    file = LockFile.open(name)
    if file is None:
        yield True
        return
    try:
        yield _wait(file, doing, limit, wait or log.warning, alive)
    finally:
        file.close()


class LockFile:
    """A file in the cache folder that processes lock."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._process = os.getpid()
        self._locked: bool | None = False

    @classmethod
    def open(cls, name: str) -> LockFile | None:
        """The file of that name; None where there is no folder for it.

        Others can neither read it nor its folder: whoever can open a file can lock it.
        """
        try:
            with open_folder(root(), "locks", create=True) as folder:
                if folder.descriptor is not None:
                    os.fchmod(folder.descriptor, 0o700)
                path = folder.path / f"{name}.lock"
                where = path if folder.descriptor is None else path.name
                flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
                return cls(path, os.open(where, flags, 0o600, dir_fd=folder.descriptor))
        except OSError as error:
            log.info("no turns among processes at %r: %s", name, error)
            return None

    def try_lock(self) -> bool:
        """Whether the lock was to be had, or files cannot be locked here."""
        self._locked = try_lock(self._descriptor)
        if self._locked:
            text = f"process {os.getpid()} on {platform.node()}\n".encode()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)
        return self._locked is not False

    def holder(self) -> str:
        """Who has the lock, as whoever took it has written there."""
        found = os.pread(self._descriptor, 200, 0).decode("utf-8", "replace").strip()
        return found or "another process"

    def close(self) -> None:
        """Gives the lock back.  A child of a fork has no part in it, and nothing to close."""
        if os.getpid() != self._process:
            return
        if self._locked:
            release(self._descriptor)
        else:
            os.close(self._descriptor)


def _wait(
    file: LockFile,
    doing: str,
    limit: float,
    say: Callable[[str], None],
    alive: Callable[[], object] | None,
) -> bool:
    begin = last = time.monotonic()
    state, said = alive and alive(), False
    while not file.try_lock():
        now = time.monotonic()
        if alive is not None and (found := alive()) != state:
            state, last = found, now
        if now - last >= limit:
            log.warning(
                "%s still %s after %.0f s and holds %s; going on beside it",
                *(file.holder(), doing, now - begin, file.path),
            )
            return False
        if not said and now - begin >= SAY_SECONDS:
            said = True
            say(
                f"waiting for {file.holder()}, which {doing} and holds {file.path} "
                f"(for at most {limit:g} s)"
            )
        time.sleep(_POLL_SECONDS)
    return True


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
