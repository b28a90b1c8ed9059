"""Building what the cache lacks: file locks admit one process at a time, and it can be forbidden.

Only this user can take the locks.  A process that waits for one says so.
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
"""A process that waits longer than this says for which process."""
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
        name: the name of the lock, as "ispc-build".
        doing: what the holder does, for messages, as "compiles kernels".
        limit: seconds after which the body runs without the lock.
        wait: called once with a message that names the holder; by default it is logged.
        alive: returns a value that changes while the holder makes progress: ``limit`` begins anew
            with each change.

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
    """A lock between processes: a file in the cache folder, whose content names the holder."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._process = os.getpid()
        self._locked: bool | None = False

    @classmethod
    def open(cls, name: str) -> LockFile | None:
        """Opens the lock of that name; None where the cache folder cannot hold it.

        Other users can open neither the file nor its folder: who can open a file can lock it.
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
        """Takes the lock; True if this process has it now, or files cannot be locked here."""
        self._locked = try_lock(self._descriptor)
        if self._locked:
            text = f"process {os.getpid()} on {platform.node()}\n".encode()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)
        return self._locked is not False

    def holder(self) -> str:
        """The process that has the lock, by the text that it wrote into the file."""
        text = os.pread(self._descriptor, 200, 0).decode("utf-8", "replace").strip()
        return text or "another process"

    def close(self) -> None:
        """Releases the lock and closes the file.  A forked child has nothing to release."""
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
    """Waits for a lock; False if ``limit`` seconds passed without a sign of progress."""
    begin = last = time.monotonic()
    state, said = alive and alive(), False
    while not file.try_lock():
        now = time.monotonic()
        if alive is not None and (progress := alive()) != state:
            state, last = progress, now
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
    """Makes :func:`building_allowed` raise in all threads: only the cache serves kernels inside."""
    global _forbidden
    with _lock:
        _forbidden += 1
    try:
        yield
    finally:
        with _lock:
            _forbidden -= 1


def building_allowed(what: str) -> None:
    """Raises if compiling is forbidden; call it before compiling anything.

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
    """What forbids compiling, as text for messages; None if it is allowed."""
    variable = os.environ.get("MINIDNN_NO_COMPILE", "")
    if variable.lower() not in ("", "0", "false", "no", "off"):
        return f"MINIDNN_NO_COMPILE={variable}"
    return "cache.forbid_builds()" if _forbidden else None
