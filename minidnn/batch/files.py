"""Where pictures lie: in folders, or behind the URLs that pyarrow's file systems know."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from minidnn.errors import DeviceError, GraphError
from minidnn.pictures import PictureError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+://)([^/]*)/*")

_MOST_BYTES = 1 << 30
"""Of a picture that is fetched: as many as the most pixels that are decoded take uncompressed."""

_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_OBJECT_STATE|HTTP status 403|Permission ?Denied", re.I
)
"""What a store says that gives its other files, but not this one."""


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
