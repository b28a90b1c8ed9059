"""Where pictures lie, in folders or behind URLs that pyarrow's file systems know; and which of them
a pattern means, in an order that is the same every time."""

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
"""Of a picture that is fetched: as many as the most pixels that are decoded take uncompressed."""

_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_OBJECT_STATE|HTTP status 403|Permission ?Denied", re.I
)
"""What a store says that gives its other files, but not this one."""
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class FileEntry:
    """What a folder has: a file, or a folder, which may not be one to enter."""

    name: str
    path: str
    is_folder: bool
    is_entered: bool = True


class Files(Protocol):
    """A file system."""

    def kind(self, path: str) -> str | None:
        """What a path is: "file", "folder", or None if nothing is there; GraphError if nobody can
        tell."""

    def entries(self, folder: str) -> Iterator[FileEntry]:
        """What a folder has, in any order; OSError if it cannot be read."""


class LocalFiles:
    """The folders of this machine.  Links to folders are not entered: they may lead in a circle."""

    def kind(self, path: str) -> str | None:
        if not os.path.exists(path):
            return None
        return "folder" if os.path.isdir(path) else "file"

    def entries(self, folder: str) -> Iterator[FileEntry]:
        with os.scandir(folder) as scanned:
            for each in scanned:
                yield FileEntry(each.name, each.path, each.is_dir(), not each.is_symlink())


class RemoteFiles:
    """What is behind URLs, by their scheme and authority ("s3://bucket")."""

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
        """The content of a file.

        PictureError if there is none, or it is refused; OSError if the store cannot be reached, of
        which nothing follows for the file.
        """
        try:
            with self._system.open_input_file(self._inner(path)) as file:
                size = file.size()
                if size > _MOST_BYTES:
                    raise PictureError(
                        f"picture {path} has {size:,} bytes; valid are at most {_MOST_BYTES:,}"
                    )
                found: bytes = file.read()
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            reason = os.strerror(error.errno) if error.errno else "it is not there"
            raise PictureError(f"picture {path} cannot be read: {reason}") from error
        except OSError as error:
            if _REFUSED.search(str(error)):
                text = " ".join(str(error).split())[:300]
                raise PictureError(f"picture {path} cannot be read: {text}") from error
            raise
        if len(found) != size:
            raise OSError(f"{len(found):,} of {size:,} bytes came")
        return found

    def _inner(self, path: str) -> str:
        """The path as the file system has it; letters in it mean themselves."""
        rest = path[len(self._root) :].strip("/")
        return f"{self._base}/{rest}" if rest else self._base or "/"


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return _URL.match(path) is not None


def split_url(path: str) -> tuple[str, str]:
    """The scheme and the authority of a URL, and what follows."""
    match = _URL.match(path)
    assert match is not None
    return match[1].lower() + match[2], path[match.end() :]


@cache
def remote_files(root: str) -> RemoteFiles:
    """The file system of a URL's scheme and authority, one for each process.

    DeviceError if pyarrow is missing, GraphError if it does not know such URLs.
    """
    return RemoteFiles(root)


def files_of_path(path: str) -> Files:
    """The file system in which a path lies."""
    return remote_files(split_url(path)[0]) if is_remote(path) else LocalFiles()


def _opened(root: str) -> tuple[Any, str]:
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
    """The files that a pattern means.

    Attributes:
        left: how many others are there, once all were asked for.
    """

    pattern: str
    left: int = 0

    def __iter__(self) -> Iterator[str]:
        """Paths in the order of their names, folder by folder; one folder's names are in memory at
        a time.  What is hidden counts only if the pattern names it, and folders that are links are
        not entered, since they may lead in a circle.

        GraphError if a folder cannot be read.
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
            elif len(parts) not in after:
                self.left += 1
            elif known is None or os.path.splitext(entry.name)[1].lower() in known:
                yield entry.path
            else:
                self.left += 1


def _split(pattern: str, files: Files) -> tuple[str, list[str]]:
    """The folder before the first wildcard, and what follows; nothing for a single file."""
    kind = files.kind(pattern)
    if kind is not None:
        return pattern, ["**"] if kind == "folder" else []
    if not _WILD.search(pattern):
        raise GraphError(
            f"--input {pattern}: there is no such file or folder; valid are those, and patterns "
            "such as 'pictures/**' and 'pictures/*/*.jpg'"
        )
    before, path = split_url(pattern) if is_remote(pattern) else ("", pattern)
    whole = path.split("/")
    first = next((place for place, part in enumerate(whole) if _WILD.search(part)), None)
    if first is None:
        raise GraphError(f"--input {pattern}: valid are wildcards behind {before}")
    root = "/".join(whole[:first])
    if before:
        root = f"{before}/{root}"
    root = root or ("/" if pattern.startswith("/") else ".")
    return root, [part for part in whole[first:] if part not in ("", ".")]


def _closed(parts: list[str], states: Iterable[int]) -> frozenset[int]:
    """With each place before a ``**`` the one behind it, since it may mean no folder at all."""
    found = set(states)
    for state in sorted(found):
        while state < len(parts) and parts[state] == "**":
            state += 1
            found.add(state)
    return frozenset(found)


def _step(parts: list[str], states: frozenset[int], name: str) -> Iterator[int]:
    """The places in a pattern that one more name leads to."""
    for state in _closed(parts, states):
        if state == len(parts) or (name.startswith(".") and not parts[state].startswith(".")):
            continue
        if parts[state] == "**":
            yield state
        elif fnmatchcase(name, parts[state]):
            yield state + 1


@dataclass(frozen=True)
class FilePart:
    """A range of lines of the list of files, which one worker computes at a time.

    Attributes:
        begin, end: bytes of the list.
    """

    number: int
    begin: int
    end: int


@dataclass(frozen=True)
class Listed:
    """What was written of a list: how many files, and the hash of all lines."""

    files: int
    sha256: str


def write_list(files: Iterable[str], file: BinaryIO) -> Listed:
    """Writes a list of files, a JSON string in each line, whatever letters names have."""
    count, digest = 0, hashlib.sha256()
    for name in files:
        line = json.dumps(name).encode() + b"\n"
        digest.update(line)
        file.write(line)
        count += 1
    return Listed(count, digest.hexdigest())


def parts_of(path: Path, size: int) -> tuple[list[FilePart], str]:
    """The parts of a list, of ``size`` files each but the last, and the hash of what was read."""
    found: list[FilePart] = []
    digest = hashlib.sha256()
    begin = end = lines = 0
    with path.open("rb") as file:
        for line in file:
            digest.update(line)
            end, lines = end + len(line), lines + 1
            if lines == size:
                found.append(FilePart(len(found), begin, end))
                begin, lines = end, 0
    if lines:
        found.append(FilePart(len(found), begin, end))
    return found, digest.hexdigest()


def files_of(path: Path, part: FilePart) -> list[str]:
    """The files of a part."""
    with path.open("rb") as file:
        file.seek(part.begin)
        data = file.read(part.end - part.begin)
    return [json.loads(line) for line in data.splitlines()]
