"""Which files a pattern means, in an order that is the same every time, and the list of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from minidnn.batch.files import Files, files_of_path, is_remote, split_url
from minidnn.errors import GraphError
from minidnn.pictures import extensions

_WILD = re.compile(r"[*?\[]")


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
