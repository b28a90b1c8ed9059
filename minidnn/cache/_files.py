"""The files of the cache: names, listing, writing in one step, removing."""

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

from ._folders import log
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
