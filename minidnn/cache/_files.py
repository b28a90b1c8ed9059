"""The files of the cache: their names, atomic writes, listing, removal and disk usage."""

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

#: Writes the content of a new file at a temporary path.
Fill = Callable[[Path], None]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of the cache: ``size`` in bytes, ``written`` and ``used`` in ns since the epoch.

    ``check`` is the leading part of the content's SHA-256, in hex digits.
    """

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
    """Writes a file atomically: ``fill`` writes a temporary one, which is renamed to ``target``.

    Missing folders from ``base`` down to the target's are made.

    Raises:
        UntrustedError: one of these folders, or the file that ``fill`` made, could have been
            written by others.
        OSError: the file cannot be written.
    """
    levels = target.relative_to(base).parts
    for attempt in range(_ATTEMPTS):
        work = target.parent / f"{WORK_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with open_folder(base, *levels[:-1], create=True):
                fill(work)
            written = os.lstat(work)
            os.chmod(work, stat.S_IMODE(written.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
            if foreign := why_untrusted(os.lstat(work), work):  # a link to another user's file
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
    with contextlib.suppress(OSError):  # a read-only cache serves entries all the same
        os.utime(entry.path, ns=(time.time_ns(), entry.written))


def unlink(path: Path) -> bool:
    """Removes a file; returns whether this call did.  Errors are logged."""
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error)
        return False
    return True


def size_of(path: Path) -> int:
    """The size of a file in bytes, 0 if it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def listing(folder: Path) -> list[os.DirEntry[str]]:
    """The items of a folder, sorted by name; none if the folder is missing or unreadable."""
    try:
        with os.scandir(folder) as items:
            return sorted(items, key=lambda item: item.name)
    except OSError as error:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            log.warning("cannot list %s: %s", folder, error)
        return []


def scan_shard(shard: Path, kind: str, wanted: str = "") -> list[Entry]:
    """The entries in one folder, sorted by key; of several files of a key the newest comes first.

    With a ``wanted`` key, only its entries are returned, and no other file is asked for its size
    and times.
    """
    entries = []
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
        entries.append(
            Entry(kind, key, check, label, suffix, stat.st_size, stat.st_mtime_ns, used, path)
        )
    return sorted(entries, key=lambda e: (e.key, -e.written))


def shards_of(base: Path, kind: str) -> list[Path]:
    """The folders of a kind's entries, one for each first two digits of their keys."""
    items = listing(base / kind)
    return [base / kind / item.name for item in items if re.fullmatch("[0-9a-f]{2}", item.name)]


def scan(base: Path, kind: str) -> Iterator[Entry]:
    """Yields all entries of a kind, sorted by key."""
    for shard in shards_of(base, kind):
        yield from scan_shard(shard, kind)


def unfinished_files(folders: Iterable[Path]) -> Iterator[tuple[Path, int, float]]:
    """Yields path, size in bytes and age in seconds of temporary files: those that are being
    written, and those that dead writers left behind."""
    for folder in folders:
        for item in listing(folder):
            if item.name.startswith(WORK_PREFIX):
                with contextlib.suppress(FileNotFoundError):
                    stat = item.stat(follow_symlinks=False)
                    yield folder / item.name, stat.st_size, time.time() - stat.st_mtime


_BUSY_SECONDS = 2.0
"""An unfinished file younger than this counts as still being written."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """The disk usage of one kind: the number of its entries, their size in bytes, and the size of
    its unfinished files in bytes."""

    entries: int
    size: int
    unfinished: int


def kinds_of() -> list[str]:
    """The kinds that have a folder in the cache."""
    return [item.name for item in listing(root()) if KIND.fullmatch(item.name)]


def entries() -> Iterator[Entry]:
    """Yields the entries of every kind in the cache folder, sorted by kind and key."""
    for kind in kinds_of():
        yield from scan(root(), kind)


def usage() -> dict[str, Usage]:
    """The disk usage of each kind; kinds without files are left out."""
    result = {}
    for kind in kinds_of():
        sizes = [entry.size for entry in scan(root(), kind)]
        folders = [root() / kind, *shards_of(root(), kind)]
        unfinished = [size for _, size, _ in unfinished_files(folders)]
        if sizes or unfinished:
            result[kind] = Usage(len(sizes), sum(sizes), sum(unfinished))
    return result


def clear(kind: str | None = None) -> int:
    """Removes the entries of a kind, or of all, and returns how many bytes that freed.

    Unfinished files go too, but for those written to in the last :data:`_BUSY_SECONDS`.  Only
    files with the name of an entry or of an unfinished file are removed, so a wrong
    ``MINIDNN_CACHE`` costs nothing.

    Raises:
        ValueError: there is no such kind.
    """
    kinds = kinds_of()
    if kind is not None and kind not in kinds:
        valid = ", ".join(kinds) or "none: the cache is empty"
        raise ValueError(f"clear: kind {kind!r} is not in the cache {root()}; valid: {valid}")
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
