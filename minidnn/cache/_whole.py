"""The cache as a whole, for ``minidnn cache``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from ._files import KIND, Entry, listing, scan, shards_of, unfinished_files, unlink
from ._folders import root

BUSY_SECONDS = 2.0
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

    Unfinished files go too, but for those written to in the last :data:`BUSY_SECONDS`.  Only
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
        files += [(path, size) for path, size, age in unfinished if age > BUSY_SECONDS]
        freed += sum(size for path, size in files if unlink(path))
        for folder in folders:
            with contextlib.suppress(OSError):  # not empty: another process has just written
                folder.rmdir()
    return freed
