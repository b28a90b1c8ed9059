"""Whose files these are: nothing that another user could have written is loaded or run.

A folder is opened level by level and looked at through its descriptor, so that what was checked is
what is used, whatever happens to the path meanwhile.  On systems without users (Windows) all is
taken as it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Bits of a mode that let the group or anybody write.
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
#: Whether folders can be opened and files in them found by descriptor.
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and hasattr(os, "geteuid")
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
#: No link is followed, and opening a pipe does not wait for somebody to write to it.
_FILE = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _FILE |= getattr(os, _flag, 0)


class UntrustedError(OSError):
    """Something that others could have written; the text says what, and what to do."""

    def __str__(self) -> str:
        return str(self.args[0])


def why_untrusted(found: os.stat_result, path: Path | str) -> str | None:
    """Why a file or folder may be somebody else's work; None if this user or root alone writes
    it."""
    if not hasattr(os, "geteuid"):
        return None
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid()):
        return (
            f"{path} belongs to user {found.st_uid}, and only files of this user "
            f"({os.geteuid()}) and of root are trusted"
        )
    if mode & _OTHERS:
        return (
            f"{path} can be written by others (its mode is {mode:04o}); if nobody has put anything "
            f"there, run 'chmod -R go-w {path}'"
        )
    return None


def why_unsafe(path: Path | str) -> str | None:
    """Why somebody else could exchange the file or folder at a path (without symbolic links)
    between a look at it and its use; None if all its folders are this user's or root's."""
    if not hasattr(os, "geteuid"):
        return None
    real = Path(path)
    reachable = True
    for level in [*reversed(real.parents), real]:
        try:
            found = os.lstat(level)
        except OSError as error:
            return f"{level} cannot be looked at: {error}"
        # In a folder with the sticky bit, as /tmp, only its owner removes what lies there.
        kept = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        foreign = found.st_uid not in (0, os.geteuid())
        if foreign or (reachable and not kept and found.st_mode & _OTHERS):
            return why_untrusted(found, level)
        if stat.S_ISDIR(found.st_mode) and not found.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            reachable = False  # nobody else gets below it
    return None


def why_any_untrusted(folder: Path) -> str | None:
    """:func:`why_untrusted` of whatever lies in a folder and below; links are not followed."""
    for base, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(base, name)
            found = os.lstat(path)
            if not stat.S_ISLNK(found.st_mode) and (reason := why_untrusted(found, path)):
                return reason
    return None


class TrustedFolder:
    """An open folder of which every level from the first on was found to be trusted.

    Attributes:
        path: of the folder.
        descriptor: of the folder; None where folders have none.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self.descriptor = descriptor

    @contextmanager
    def file(self, name: str) -> Iterator[int]:
        """A descriptor of a file to read, which is neither a link nor somebody else's.

        Raises:
            UntrustedError: it is.
            OSError: it cannot be opened.
        """
        where = name if self.descriptor is not None else str(self.path / name)
        opened = os.open(where, _FILE, dir_fd=self.descriptor)
        try:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(f"{self.path}/{name} is not a file")
            _require(found, f"{self.path}/{name}")
            yield opened
        finally:
            os.close(opened)

    def place(self, name: str) -> str:
        """A path to a file for what takes paths only: through the open folder where somebody could
        exchange one above it.  The file's name says its content, so the linker, which knows
        libraries by their paths, does not take one for another whose folder had this number."""
        through = f"/proc/self/fd/{self.descriptor}"
        if self.descriptor is None or why_unsafe(self.path) is None or not os.path.exists(through):
            return str(self.path / name)
        return f"{through}/{name}"


@contextmanager
def open_folder(base: Path, *names: str, create: bool = False) -> Iterator[TrustedFolder]:
    """The folder ``base / names[0] / ...``, with every level checked from ``base`` on.

    create: makes the levels that are missing, those above ``base`` too, for this user alone.

    Raises:
        UntrustedError: a level is not this user's (or root's), or others can write to it.
        OSError: a level is not there, or cannot be made.
    """
    if create:
        make_folder(base)
    if not _BY_DESCRIPTOR:
        unchecked = base.joinpath(*names)
        if create:
            make_folder(unchecked)
        yield TrustedFolder(unchecked, None)
        return
    path, descriptor = str(base), os.open(base, _FOLDER)
    try:
        _require(os.fstat(descriptor), path)
        for name in names:
            path = f"{path}/{name}"
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=descriptor)
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
            _require(os.fstat(descriptor), path)
        yield TrustedFolder(Path(path), descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Makes a folder and those above it that are missing, each for this user alone: the modes that
    ``os.makedirs`` gives to those above depend on the umask."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_folder(path.parent)
        with suppress(FileExistsError):  # another process was faster
            os.mkdir(path, 0o700)


def _require(found: os.stat_result, path: str) -> None:
    reason = why_untrusted(found, path)
    if reason is not None:
        raise UntrustedError(reason)
