"""Where the cache is, what replaces it when it cannot be written, and where programs and libraries
are made before they get their place in it.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .._forks import ForkLock
from ..errors import MiniDNNError, MiniDNNWarning
from ._temporary import TemporaryFolder
from ._trust import UntrustedError, open_folder, why_unsafe

log = logging.getLogger("minidnn.cache")

_lock = ForkLock()
_private: dict[int, Path] = {}
_warned: dict[str, None] = {}
_refused: dict[str, str] = {}


def root() -> Path:
    """The cache folder: ``MINIDNN_CACHE``, or ``minidnn`` in the platform's cache folder.

    The folder need not exist.  Without a home folder it is a private one, removed at exit.
    """
    chosen = os.environ.get("MINIDNN_CACHE", "")
    try:
        if chosen:
            return Path(os.path.abspath(os.path.expanduser(chosen)))
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "minidnn"
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA", "")
            return (Path(local) if local else Path.home()) / "minidnn" / "cache"
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification says to ignore a relative path.
        return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "minidnn"
    except RuntimeError as error:  # Path.home() found no home folder
        warn_once("no home folder", f"no cache folder: {error}")
        return private_folder()


def private_folder() -> Path:
    """A temporary folder of this process, made on first use and removed at exit."""
    pid = os.getpid()  # after a fork the child must neither use nor remove its parent's folder
    with _lock:
        if pid not in _private:
            made = TemporaryFolder(Path(tempfile.gettempdir()))
            _private[pid] = made.path
            atexit.register(_remove_private, pid, made)
        return _private[pid]


def existing_private_folder() -> Path | None:
    """The folder of :func:`private_folder`, if it was needed so far."""
    return _private.get(os.getpid())


def _remove_private(pid: int, folder: TemporaryFolder) -> None:
    if os.getpid() == pid:
        folder.remove()


def not_used(error: OSError) -> None:
    """Says once why the cache folder is left alone."""
    untrusted = isinstance(error, UntrustedError)
    if untrusted:
        _refused[str(root())] = f"which is not used, since {error}"
    doing = "is not used" if untrusted else "cannot be written"
    warn_once(f"{root()} {doing}", f"the cache folder {root()} {doing}: {error}")


def why_not_used() -> str | None:
    """Why what the cache folder has is not used, if that was found so far."""
    return _refused.get(str(root()))


def warn_once(subject: str, problem: str) -> None:
    with _lock:
        if subject in _warned:
            return
        _warned[subject] = None
    text = (
        f"{problem}; until the process ends a temporary folder is used instead, so work is "
        "repeated in every process: set MINIDNN_CACHE to a folder that can be written"
    )
    log.warning(text)
    warnings.warn(text, MiniDNNWarning, stacklevel=3)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for what is compiled and then run, removed at the end.

    It lies in the temporary folder, or in the cache where others could exchange the temporary
    folder's files (one that all may write to, without the sticky bit).

    Raises:
        MiniDNNError: others could exchange files in both.
        OSError: it cannot be made.
    """
    made = TemporaryFolder(_base())
    try:
        yield made.path
    finally:
        made.remove()


def _base() -> Path:
    given = Path(os.path.realpath(tempfile.gettempdir()))
    reason = why_unsafe(given)
    if reason is None:
        return given
    own = Path(os.path.realpath(root() / "temporary"))
    try:
        with open_folder(root(), "temporary", create=True):
            second = why_unsafe(own)
    except OSError as error:
        second = str(error)
    if second is not None:
        raise MiniDNNError(
            f"there is no folder to compile in that others cannot write to: {reason}; nor in the "
            f"cache: {second}; set TMPDIR to a folder of your own"
        )
    return own
