"""The files of the cache: names, listing, writing in one step, removing, and what all of them take
together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ._folders import log, root
from ._trust import UntrustedError, open_folder, why_untrusted

KIND = re.compile(r"[a-z][a-z0-9_]{0,31}")
KEY = re.compile(r"[0-9a-f]{8,64}")
NAME = re.compile(r"([0-9a-f]{8,64})-([0-9a-f]{32})(?:-([A-Za-z0-9_]+))?((?:\.[A-Za-z0-9_]+)*)")
WORK_PREFIX = ".work-"
_ATTEMPTS = 10

Fill = Callable[[Path], None]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of the cache: ``size`` in bytes, ``written`` and ``used`` in ns since the epoch."""

    kind: str
    key: str
    check: str
    label: str
    suffix: str
    size: int
    written: int
    used: int
    path: Path


def place(base: Path, target: Path, fill: Fill) -> None:
    """Lets ``fill`` write a file of its own and gives it its name in one step.

    Raises:
        UntrustedError: a folder from ``base`` down to the target's is somebody else's, or what was
            written is.
        OSError: it cannot be written.
    """
    levels = target.relative_to(base).parts
    for attempt in range(_ATTEMPTS):
        work = target.parent / f"{WORK_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with open_folder(base, *levels[:-1], create=True):
                fill(work)
            written = os.lstat(work)
            os.chmod(work, stat.S_IMODE(written.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
            if foreign := why_untrusted(os.lstat(work), work):  # a link to somebody else's file
                raise UntrustedError(foreign)
            # The kernel's own time stamps are too coarse to order two writes of one key.
            now = time.time_ns()
            os.utime(work, ns=(now, now))
            os.replace(work, target)
            return
        except (FileNotFoundError, FileExistsError):
            # Another process clears the cache and has removed the empty folder or the file.
            if attempt == _ATTEMPTS - 1:
                raise
        finally:
            unlink(work)


def touch(entry: Entry) -> None:
    """Records a use in the access time; the modification time stays that of the write."""
    with contextlib.suppress(OSError):  # a cache that may only be read is used all the same
        os.utime(entry.path, ns=(time.time_ns(), entry.written))


def unlink(path: Path) -> bool:
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error)
        return False
    return True


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def listing(folder: Path) -> list[os.DirEntry[str]]:
    """The items of a folder by name; none when it is not there."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda item: item.name)
    except OSError as error:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            log.warning("cannot list %s: %s", folder, error)
        return []


def scan_shard(shard: Path, kind: str, wanted: str = "") -> list[Entry]:
    """Entries in one folder, by key; of several files of a key the last written comes first.

    With a ``wanted`` key its entries alone, and only of these sizes and times are read.
    """
    found = []
    for item in listing(shard):
        match = NAME.fullmatch(item.name)
        if not match or (wanted and match[1] != wanted):
            continue
        try:
            stat = item.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        used = max(stat.st_atime_ns, stat.st_mtime_ns)
        key, check, label, suffix = match.groups(default="")
        path = shard / item.name
        found.append(
            Entry(kind, key, check, label, suffix, stat.st_size, stat.st_mtime_ns, used, path)
        )
    return sorted(found, key=lambda e: (e.key, -e.written))


def shards_of(base: Path, kind: str) -> list[Path]:
    found = listing(base / kind)
    return [base / kind / item.name for item in found if re.fullmatch("[0-9a-f]{2}", item.name)]


def scan(base: Path, kind: str) -> Iterator[Entry]:
    for shard in shards_of(base, kind):
        yield from scan_shard(shard, kind)


def unfinished_files(folders: Iterable[Path]) -> Iterator[tuple[Path, int, float]]:
    """Path, size in bytes and age in seconds of files that are being written or were left."""
    for folder in folders:
        for item in listing(folder):
            if item.name.startswith(WORK_PREFIX):
                with contextlib.suppress(FileNotFoundError):
                    stat = item.stat(follow_symlinks=False)
                    yield folder / item.name, stat.st_size, time.time() - stat.st_mtime


_BUSY_SECONDS = 2.0
"""An unfinished file that was written to so shortly ago is still being written."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """How many entries one kind has, and their size and that of unfinished files in bytes."""

    entries: int
    size: int
    unfinished: int


def kinds_of() -> list[str]:
    return [item.name for item in listing(root()) if KIND.fullmatch(item.name)]


def entries() -> Iterator[Entry]:
    """The entries of every kind in the cache folder, by kind and key."""
    for kind in kinds_of():
        yield from scan(root(), kind)


def usage() -> dict[str, Usage]:
    """What each kind takes; kinds without files are left out."""
    result = {}
    for kind in kinds_of():
        sizes = [entry.size for entry in scan(root(), kind)]
        folders = [root() / kind, *shards_of(root(), kind)]
        unfinished = [size for _, size, _ in unfinished_files(folders)]
        if sizes or unfinished:
            result[kind] = Usage(len(sizes), sum(sizes), sum(unfinished))
    return result


def clear(kind: str | None = None) -> int:
    """Removes the entries of a kind, or all, and says how many bytes that freed.

    Unfinished files go too, but for those written to in the last :data:`_BUSY_SECONDS`.  Only
    files that have the name of an entry or of an unfinished one are touched, so a wrong
    ``MINIDNN_CACHE`` costs nothing.

    Raises:
        ValueError: there is no such kind.
    """
    kinds = kinds_of()
    if kind is not None and kind not in kinds:
        known = ", ".join(kinds) or "none: the cache is empty"
        raise ValueError(f"clear: kind {kind!r} is not in the cache {root()}; valid: {known}")
    freed = 0
    for name in kinds if kind is None else [kind]:
        folders = [*shards_of(root(), name), root() / name]
        files = [(e.path, e.size) for e in scan(root(), name)]
        unfinished = unfinished_files(folders)
        files += [(path, size) for path, size, age in unfinished if age > _BUSY_SECONDS]
        freed += sum(size for path, size in files if unlink(path))
        for folder in folders:
            with contextlib.suppress(OSError):  # not empty: another process has just written
                folder.rmdir()
    return freed
