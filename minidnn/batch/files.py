"""The input files of a run: local and remote file systems, glob patterns, and the list of files.

Files are in folders or behind URLs that pyarrow's file systems open.  A pattern yields them in a
deterministic order; the list keeps them, so that parts are ranges of its lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from minidnn.errors import DeviceError, GraphError
from minidnn.pictures import PictureError, extensions

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+://)([^/]*)/*")

_MOST_BYTES = 1 << 30
"""The largest size of a picture that is fetched, in bytes: what the most pixels that are decoded
take uncompressed."""

_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_OBJECT_STATE|HTTP status 403|Permission ?Denied", re.I
)
"""Errors of a store that refuses this file, but is reachable and may give others."""
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class FileEntry:
    """An entry of a folder: a file, or a folder.

    Attributes:
        is_entered: whether a walk enters the folder; False for symbolic links.
    """

    name: str
    path: str
    is_folder: bool
    is_entered: bool = True


class Files(Protocol):
    """A file system, local or remote, as walking a pattern needs it."""

    def kind(self, path: str) -> str | None:
        """Returns "file", "folder", or None if there is nothing at a path; GraphError if the file
        system cannot be asked."""

    def entries(self, folder: str) -> Iterator[FileEntry]:
        """Yields the entries of a folder, in any order; OSError if it cannot be read."""


class LocalFiles:
    """The file system of this machine.  Links to folders are not entered: they may form a cycle."""

    def kind(self, path: str) -> str | None:
        if not os.path.exists(path):
            return None
        return "folder" if os.path.isdir(path) else "file"

    def entries(self, folder: str) -> Iterator[FileEntry]:
        with os.scandir(folder) as scanned:
            for entry in scanned:
                yield FileEntry(entry.name, entry.path, entry.is_dir(), not entry.is_symlink())


class RemoteFiles:
    """The pyarrow file system behind URLs of one scheme and authority, such as "s3://bucket"."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._system, self._base = _opened(root)

    def kind(self, path: str) -> str | None:
        try:
            kind = self._system.get_file_info(self._inner(path)).type.name
        except OSError as error:
            text = " ".join(str(error).split())[:300]
            raise GraphError(f"--input {path} cannot be looked for: {text}") from error
        return {"File": "file", "Directory": "folder"}.get(kind)

    def entries(self, folder: str) -> Iterator[FileEntry]:
        from pyarrow.fs import FileSelector

        inner = self._inner(folder)
        for info in self._system.get_file_info(FileSelector(inner)):
            name = info.base_name
            path = f"{folder.rstrip('/')}/{name}"
            yield FileEntry(name, path, info.type.name == "Directory")

    def read(self, path: str) -> bytes:
        """Returns the content of a file.

        PictureError if there is no such file, or it is refused; OSError if the store cannot be
        reached, so that nothing is known about the file.
        """
        try:
            with self._system.open_input_file(self._inner(path)) as file:
                size = file.size()
                if size > _MOST_BYTES:
                    raise PictureError(
                        f"picture {path} has {size:,} bytes; valid are at most {_MOST_BYTES:,}"
                    )
                content: bytes = file.read()
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            reason = os.strerror(error.errno) if error.errno else "it is not there"
            raise PictureError(f"picture {path} cannot be read: {reason}") from error
        except OSError as error:
            if _REFUSED.search(str(error)):
                text = " ".join(str(error).split())[:300]
                raise PictureError(f"picture {path} cannot be read: {text}") from error
            raise
        if len(content) != size:
            raise OSError(f"{len(content):,} of {size:,} bytes came")
        return content

    def _inner(self, path: str) -> str:
        """A URL's path within pyarrow's file system; no character of it is an escape."""
        rest = path[len(self._root) :].strip("/")
        return f"{self._base}/{rest}" if rest else self._base or "/"


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return _URL.match(path) is not None


def split_url(path: str) -> tuple[str, str]:
    """Splits a URL into its scheme with the authority ("s3://bucket"), and its path."""
    match = _URL.match(path)
    assert match is not None
    return match[1].lower() + match[2], path[match.end() :]


@cache
def remote_files(root: str) -> RemoteFiles:
    """Returns the file system of a URL's scheme and authority, one instance in each process.

    DeviceError if pyarrow is missing, GraphError if it does not know such URLs.
    """
    return RemoteFiles(root)


def files_of_path(path: str) -> Files:
    """Returns the file system of a path or URL."""
    return remote_files(split_url(path)[0]) if is_remote(path) else LocalFiles()


def _opened(root: str) -> tuple[Any, str]:
    """Opens a pyarrow file system by URL, and returns it and the base path of its files."""
    try:
        from pyarrow import ArrowException
        from pyarrow.fs import FileSystem
    except ImportError:
        raise DeviceError(
            f"{root}: pyarrow is not installed (pip install 'minidnn[batch]')"
        ) from None
    if "@" in root:
        raise GraphError(
            f"--input {root.partition('://')[0]}://…@…: names would be written with what is before "
            "the @; valid are credentials in the environment"
        )
    try:
        system, base = FileSystem.from_uri(f"{root}/")
    except (OSError, ValueError, ImportError, ArrowException) as error:
        text = " ".join(str(error).split())[:300]
        raise GraphError(
            f"--input {root}: {text}; valid are folders, and URLs that pyarrow.fs opens, such as "
            "s3://bucket/pictures/**"
        ) from error
    return system, base.rstrip("/")


@dataclass
class Found:
    """The files that a pattern matches, found while iterating.

    Attributes:
        pattern: an absolute path or URL of a file or folder, or a glob pattern with ``*``, ``?``,
            ``[]`` and ``**``.
        left: how many other files the walk saw, once iterating is over.
    """

    pattern: str
    left: int = 0

    def __iter__(self) -> Iterator[str]:
        """Yields paths sorted by name, folder by folder.

        Only the entries of the folders on the current path are in memory.  Hidden files match only
        if the pattern spells the dot, and folders that are links are not entered, since they may
        form a cycle.  GraphError if a folder cannot be read.
        """
        files = files_of_path(self.pattern)
        root, parts = _split(self.pattern, files)
        if not parts:
            yield root
            return
        known = extensions() if parts[-1] in ("*", "**") else None
        yield from self._walk(files, root, parts, frozenset([0]), known)

    def _walk(
        self,
        files: Files,
        folder: str,
        parts: list[str],
        states: frozenset[int],
        known: frozenset[str] | None,
    ) -> Iterator[str]:
        """Yields the matches below a folder.

        The pattern's ``parts`` are states of a nondeterministic automaton over names: ``states``
        are the indices of parts that the folder's entries may match, and ``len(parts)`` accepts.
        ``known`` are the extensions that files must have, None for any.
        """
        try:
            entries = sorted(files.entries(folder), key=lambda entry: entry.name)
        except OSError as error:
            reason = error.strerror or " ".join(str(error).split())[:300]
            raise GraphError(f"--input: folder {folder} cannot be read: {reason}") from None
        for entry in entries:
            after = _closed(parts, _step(parts, states, entry.name))
            if entry.is_folder:
                if after - {len(parts)} and entry.is_entered:
                    yield from self._walk(files, entry.path, parts, after, known)
            elif len(parts) in after and (
                known is None or os.path.splitext(entry.name)[1].lower() in known
            ):
                yield entry.path
            else:
                self.left += 1


def _split(pattern: str, files: Files) -> tuple[str, list[str]]:
    """Splits a pattern into the folder before the first wildcard and the parts after it.

    There are no parts for a single file.
    """
    kind = files.kind(pattern)
    if kind is not None:
        return pattern, ["**"] if kind == "folder" else []
    if not _WILD.search(pattern):
        raise GraphError(
            f"--input {pattern}: there is no such file or folder; valid are those, and patterns "
            "such as 'pictures/**' and 'pictures/*/*.jpg'"
        )
    before, path = split_url(pattern) if is_remote(pattern) else ("", pattern)
    names = path.split("/")
    first = next((index for index, name in enumerate(names) if _WILD.search(name)), None)
    if first is None:
        raise GraphError(f"--input {pattern}: valid are wildcards behind {before}")
    root = "/".join(names[:first])
    if before:
        root = f"{before}/{root}"
    root = root or ("/" if pattern.startswith("/") else ".")
    return root, [name for name in names[first:] if name not in ("", ".")]


def _closed(parts: list[str], states: Iterable[int]) -> frozenset[int]:
    """Returns the states and those that ``**`` reaches without a name: it may match no folder."""
    closure = set(states)
    for state in sorted(closure):
        while state < len(parts) and parts[state] == "**":
            state += 1
            closure.add(state)
    return frozenset(closure)


def _step(parts: list[str], states: frozenset[int], name: str) -> Iterator[int]:
    """Yields the states that one more name leads to."""
    for state in _closed(parts, states):
        if state == len(parts) or (name.startswith(".") and not parts[state].startswith(".")):
            continue
        if parts[state] == "**":
            yield state
        elif fnmatchcase(name, parts[state]):
            yield state + 1


@dataclass(frozen=True)
class FilePart:
    """A range of lines of the list of files: the unit of work of a worker.

    Attributes:
        number: the part's index, from 0.
        begin, end: offsets in the list, in bytes.
    """

    number: int
    begin: int
    end: int


def write_list(files: Iterable[str], file: BinaryIO) -> tuple[int, str]:
    """Writes a list of files, one JSON string per line, which holds any characters of a name.

    Returns how many files there are, and the SHA-256 of all lines.
    """
    count, digest = 0, hashlib.sha256()
    for name in files:
        line = json.dumps(name).encode() + b"\n"
        digest.update(line)
        file.write(line)
        count += 1
    return count, digest.hexdigest()


def parts_of(path: Path, size: int) -> tuple[list[FilePart], str]:
    """Returns the parts of a list, of ``size`` files each but the last, and the list's SHA-256."""
    parts: list[FilePart] = []
    digest = hashlib.sha256()
    begin = end = lines = 0
    with path.open("rb") as file:
        for line in file:
            digest.update(line)
            end, lines = end + len(line), lines + 1
            if lines == size:
                parts.append(FilePart(len(parts), begin, end))
                begin, lines = end, 0
    if lines:
        parts.append(FilePart(len(parts), begin, end))
    return parts, digest.hexdigest()


def files_of(path: Path, part: FilePart) -> list[str]:
    """Reads the files of a part from the list."""
    with path.open("rb") as file:
        file.seek(part.begin)
        data = file.read(part.end - part.begin)
    return [json.loads(line) for line in data.splitlines()]
