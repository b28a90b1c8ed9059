"""The store of one kind of cache entries: reading, writing, eviction; and keys for them.

:func:`digest` makes a key from all that an entry depends on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import secrets
import shutil
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

from ..errors import MiniDNNError, MiniDNNWarning
from . import _folders
from ._files import (
    KEY,
    KIND,
    WORK_PREFIX,
    Entry,
    Fill,
    place,
    scan,
    scan_shard,
    size_of,
    touch,
    unfinished_files,
    unlink,
)
from ._folders import log, not_used, private_folder, root
from ._trust import TrustedFolder, UntrustedError, make_folder, open_folder

DEFAULT_LIMIT = 1 << 30
STALE_SECONDS = 7 * 24 * 3600.0
"""Age at which a temporary or partial file that its writer left behind is removed."""

_COUNTS = 64
"""How often, on average, all entries are counted while ``limit`` bytes are written."""
_CHECK_DIGITS = 32
"""Hex digits of an entry's checksum in its file name."""

S = TypeVar("S")
T = TypeVar("T")


class CacheStore:
    """The entries of one kind.

    Args:
        kind: folder name, lower case (``"ispc"``, ``"cudnn_plans"``, ``"weights"``).
        suffix: the suffix of the files, with its dot (``".so"``), or nothing.
        limit: bytes that all entries of the kind may take together, within some hundredths.  Beyond
            it the least recently used ones are removed, never the one just written.  A write counts
            all entries with a probability of 64 times its size by the limit, and otherwise looks
            into its own folder alone, so that it costs the same in an empty and in a full cache.
        grace: seconds after its last use in which an entry is not evicted, so that a path that
            another process just got is still there when it opens it.

    Raises:
        ValueError: a kind, suffix or limit that cannot be used.
    """

    def __init__(
        self, kind: str, suffix: str = "", limit: int = DEFAULT_LIMIT, *, grace: float = 5.0
    ) -> None:
        if not KIND.fullmatch(kind):
            raise ValueError(f"CacheStore: kind {kind!r} is not of the form {KIND.pattern}")
        if not re.fullmatch(r"(\.[A-Za-z0-9_]+)*", suffix):
            raise ValueError(f"CacheStore: suffix {suffix!r} is not of the form '.so'")
        if limit <= 0:
            raise ValueError(f"CacheStore: limit {limit} is not a positive number of bytes")
        self.kind = kind
        self.suffix = suffix
        self.limit = limit
        self.grace = grace

    def read(self, key: str) -> bytes | None:
        """Returns the verified content of an entry, or None if there is no (intact) entry."""

        def load(file: BufferedReader) -> tuple[bytes, str]:
            data = file.read()
            return data, hashlib.sha256(data).hexdigest()

        return self._find(key, load, lambda entry, folder, data: data)

    def path(self, key: str) -> Path | None:
        """Returns the file of an entry, its content verified, or None if no (intact) one exists."""
        return self._find(key, _checksum, lambda entry, folder, _: entry.path)

    def use(self, key: str, action: Callable[[Path, str], T]) -> T | None:
        """Returns the result of ``action`` on an entry's file, its content verified, or None if
        there is no (intact) entry.

        Args:
            key: the entry's key.
            action: called with the file's path, and with a path to it through the open folder's
                descriptor, which nobody can replace in between.  The latter is valid during the
                call only.
        """

        return self._find(
            *(key, _checksum),
            lambda entry, folder, _: action(entry.path, folder.place(entry.path.name)),
        )

    def _find(
        self,
        key: str,
        load: Callable[[BufferedReader], tuple[S, str]],
        then: Callable[[Entry, TrustedFolder, S], T],
    ) -> T | None:
        """Returns ``then`` of the newest intact entry of a key.

        ``load`` reads an entry's file and returns its content and its SHA-256.
        """
        self._check_key(key)
        for base in self._bases():
            entries = self._entries_in(base / self.kind / key[:2], key)
            with contextlib.ExitStack() as stack:
                folder = self._opened(base, key, stack) if entries else None
                if folder is None:
                    continue
                for entry in entries:
                    content = self._load(folder, entry, load)
                    if content is not None:
                        touch(entry)
                        return then(entry, folder, *content)
        return None

    def _opened(self, base: Path, key: str, stack: contextlib.ExitStack) -> TrustedFolder | None:
        """Opens the folder with a key's entries; None, with one warning, if it is not trusted."""
        try:
            return stack.enter_context(open_folder(base, self.kind, key[:2]))
        except UntrustedError as error:
            not_used(error)
        except (FileNotFoundError, NotADirectoryError):
            pass  # another process cleared the cache
        return None

    def _load(
        self, folder: TrustedFolder, entry: Entry, load: Callable[[BufferedReader], tuple[S, str]]
    ) -> tuple[S] | None:
        """Loads an entry; None if it is gone, or is damaged and so removed now.

        The content is in a tuple, since it may be None itself.
        """
        try:
            with folder.file(entry.path.name) as opened, open(opened, "rb", closefd=False) as file:
                content, checksum = load(file)
        except FileNotFoundError:
            return None  # another process removed it
        except OSError as error:
            self._discard(entry, f"it cannot be read ({error})")
            return None
        if not checksum.startswith(entry.check):
            self._discard(entry, f"its checksum is {checksum[:_CHECK_DIGITS]}")
            return None
        return (content,)

    def put(self, key: str, data: bytes, *, label: str = "") -> Path:
        """Writes an entry, replacing one of the same key, and returns its file.

        ``label`` is shown by ``minidnn cache`` (letters, digits, underscores; others become
        underscores).  If the cache cannot be written, a warning says so once, and the entry lives
        in a private temporary folder until the process ends.

        Raises:
            MiniDNNError: even the temporary folder cannot be written.
        """
        name = self._name(key, hashlib.sha256(data).hexdigest(), label)

        def write(work: Path) -> None:
            work.write_bytes(data)

        return self._write(key, name, write)

    def put_file(self, key: str, source: Path, *, label: str = "") -> Path:
        """Like :meth:`put` with the content of ``source``, which is moved into the cache."""
        with source.open("rb") as file:
            check = hashlib.file_digest(file, "sha256").hexdigest()
        name = self._name(key, check, label)

        def link_or_copy(work: Path) -> None:
            try:
                os.link(source, work)
            except OSError:  # another file system, or one without links
                shutil.copyfile(source, work)

        target = self._write(key, name, link_or_copy)
        unlink(source)
        return target

    def remove(self, key: str) -> bool:
        """Removes an entry; returns whether there was one."""
        return any([unlink(entry.path) for entry in self._candidates(key)])

    def workspace(self) -> Path:
        """Returns a folder for unfinished files of this kind, in the cache if it can be written.

        Files there whose name begins with ``.work-`` are counted as unfinished, and removed when
        they are a week old or by :func:`clear`.
        """
        folder = root() / self.kind
        try:
            probe = folder / (WORK_PREFIX + secrets.token_hex(8))
            place(root(), probe, Path.touch)
            unlink(probe)
        except OSError as error:
            not_used(error)
            folder = private_folder() / self.kind
            make_folder(folder)
        return folder

    def __iter__(self) -> Iterator[Entry]:
        """Yields all entries, by key and newest first; those of the private folder come first."""
        for base in self._bases():
            yield from scan(base, self.kind)

    def _bases(self) -> list[Path]:
        """The root folders that may have entries: the private one of this process, the cache."""
        private = _folders.existing_private_folder()
        return list(dict.fromkeys([private, root()] if private else [root()]))

    def _candidates(self, key: str) -> list[Entry]:
        self._check_key(key)
        shards = [base / self.kind / key[:2] for base in self._bases()]
        return [entry for shard in shards for entry in self._entries_in(shard, key)]

    def _entries_in(self, shard: Path, key: str) -> list[Entry]:
        entries = scan_shard(shard, self.kind, key)
        return [entry for entry in entries if entry.suffix == self.suffix]

    def _check_key(self, key: str) -> None:
        if not KEY.fullmatch(key):
            raise ValueError(
                f"CacheStore {self.kind!r}: key {key!r} is not 8 to 64 lower-case digits"
            )

    def _name(self, key: str, check: str, label: str) -> str:
        """The file name of an entry."""
        self._check_key(key)
        label = re.sub(r"[^A-Za-z0-9_]", "_", label)[:64]
        return f"{key}-{check[:_CHECK_DIGITS]}{'-' + label if label else ''}{self.suffix}"

    def _write(self, key: str, name: str, fill: Fill) -> Path:
        """Writes an entry's file to the cache, or else to the private folder, and evicts others."""
        target = root() / self.kind / key[:2] / name
        try:
            place(root(), target, fill)
        except OSError as error:
            not_used(error)
            target = private_folder() / self.kind / key[:2] / name
            try:
                place(private_folder(), target, fill)
            except OSError as second:
                raise MiniDNNError(
                    f"neither the cache folder {root()} ({error}) nor the temporary folder "
                    f"{target.parent} ({second}) can be written; set MINIDNN_CACHE or TMPDIR"
                ) from second
            return target
        self._tidy(key, target)
        if secrets.randbelow(self.limit) < _COUNTS * size_of(target):
            self._keep_limit(target)
        return target

    def _tidy(self, key: str, written: Path) -> None:
        """Removes the files that ``written`` replaces, and stale unfinished ones in its folders."""
        now = time.time_ns()
        for entry in scan_shard(written.parent, self.kind, key):
            replaced = entry.suffix == self.suffix and entry.path != written
            if replaced and self._removable(entry, now):
                unlink(entry.path)  # another process may have removed it already
        for path, _, age in unfinished_files([root() / self.kind, written.parent]):
            if age > STALE_SECONDS:
                unlink(path)

    def _keep_limit(self, written: Path) -> None:
        """Removes the least recently used entries until all fit the limit."""
        now = time.time_ns()
        present = [e for e in scan(root(), self.kind) if e.path != written]
        total = sum(e.size for e in present) + size_of(written)
        for entry in sorted(present, key=lambda e: (e.used, e.path)):
            if total > self.limit and self._removable(entry, now):
                unlink(entry.path)
                total -= entry.size

    def _removable(self, entry: Entry, now: int) -> bool:
        """Whether the grace period of an entry is over; ``now`` is in ns since the epoch."""
        return now - entry.used >= self.grace * 1e9

    def _discard(self, entry: Entry, why: str) -> None:
        """Removes a damaged entry, with older ones of its key, which must not replace it."""
        self.remove(entry.key)
        text = f"cache entry {entry.path} is damaged: {why}; it is removed and built again"
        log.warning(text)
        warnings.warn(text, MiniDNNWarning, stacklevel=4)


def _checksum(file: BufferedReader) -> tuple[None, str]:
    """Verifies without keeping the content: None, and the SHA-256."""
    return None, hashlib.file_digest(file, "sha256").hexdigest()


def digest(*parts: object) -> str:
    """The SHA-256 (64 hex digits) of ``parts``, the same in every process and on every machine.

    Parts are None, bool, int, float, str, bytes, lists and tuples (which are equal), dicts (order
    does not matter) and dataclass instances, nested at will.  Values of different types differ:
    ``1``, ``1.0``, ``True`` and ``"1"`` give four digests.

    Raises:
        TypeError: a part of another type, for example a set, whose order is not stable.
    """
    return hashlib.sha256(_canonical(parts)).hexdigest()


def _canonical(part: object) -> bytes:
    """An injective encoding of a part: tag, length, content."""
    if part is None:
        return _field(b"n", b"")
    if isinstance(part, bool):
        return _field(b"t", b"\1" if part else b"\0")
    if isinstance(part, int):
        return _field(b"i", b"%d" % part)
    if isinstance(part, float):
        return _field(b"f", struct.pack("<d", part))
    if isinstance(part, str):
        return _field(b"s", part.encode("utf-8", "surrogatepass"))
    if isinstance(part, (bytes, bytearray, memoryview)):
        return _field(b"b", bytes(part))
    if isinstance(part, (list, tuple)):
        return _field(b"l", b"".join(_canonical(item) for item in part))
    if isinstance(part, dict):
        items = sorted((_canonical(key), _canonical(value)) for key, value in part.items())
        return _field(b"d", b"".join(key + value for key, value in items))
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
        name = f"{type(part).__module__}.{type(part).__qualname__}"
        return _field(b"c", _canonical(name) + _canonical(fields))
    raise TypeError(
        f"digest: a part of type {type(part).__name__} has no stable encoding; valid are None, "
        "bool, int, float, str, bytes, list, tuple, dict and dataclass instances"
    )


def _field(tag: bytes, content: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(content), content)
