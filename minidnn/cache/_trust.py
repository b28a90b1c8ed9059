"""Trust in files: nothing that another user could have written is loaded or run.

A folder is opened level by level and checked through its descriptor, so that the folder that was
checked is the one that is used, whatever happens to its path meanwhile.  On systems without user
ids (Windows) everything is trusted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Mode bits that let the group or anybody write.
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
#: Whether files can be opened relative to the descriptor of a folder.
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and hasattr(os, "geteuid")
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
#: Flags that follow no link, and do not wait for a writer when the file is a pipe.
_FILE = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _FILE |= getattr(os, _flag, 0)


class UntrustedError(OSError):
    """A file or folder that others could have written; the text names it and says what to do."""

    def __str__(self) -> str:
        return str(self.args[0])


def why_untrusted(found: os.stat_result, path: Path | str) -> str | None:
    """Why others could have written a file or folder; None if only this user or root can."""
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
    """Why others could replace the file or folder at a path between a check and its use.

    None if it and all folders above it are this user's or root's alone.  The path has no symbolic
    links.
    """
    if not hasattr(os, "geteuid"):
        return None
    real = Path(path)
    reachable = True
    for level in [*reversed(real.parents), real]:
        try:
            status = os.lstat(level)
        except OSError as error:
            return f"{level} cannot be looked at: {error}"
        # In a folder with the sticky bit, as /tmp, only the owner of a file can remove it.
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        foreign = status.st_uid not in (0, os.geteuid())
        if foreign or (reachable and not is_sticky and status.st_mode & _OTHERS):
            return why_untrusted(status, level)
        if stat.S_ISDIR(status.st_mode) and not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            reachable = False  # others cannot open files below it
    return None


def why_any_untrusted(folder: Path) -> str | None:
    """The first reason of :func:`why_untrusted` in a folder and below; links are not followed."""
    for base, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(base, name)
            status = os.lstat(path)
            if not stat.S_ISLNK(status.st_mode) and (reason := why_untrusted(status, path)):
                return reason
    return None


class TrustedFolder:
    """An open folder, of which every level from the base folder on was found to be trusted.

    Attributes:
        path: the folder's path.
        descriptor: the folder's descriptor; None on systems where folders have none.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self.descriptor = descriptor

    @contextmanager
    def file(self, name: str) -> Iterator[int]:
        """Opens a regular, trusted file to read, and yields its descriptor.

        Raises:
            UntrustedError: others could have written the file.
            OSError: it cannot be opened, or is a link or no regular file.
        """
        target = name if self.descriptor is not None else str(self.path / name)
        opened = os.open(target, _FILE, dir_fd=self.descriptor)
        try:
            status = os.fstat(opened)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{self.path}/{name} is not a file")
            _require(status, f"{self.path}/{name}")
            yield opened
        finally:
            os.close(opened)

    def place(self, name: str) -> str:
        """A path to a file, for functions that take paths alone, such as ``dlopen``.

        It goes through the open folder's descriptor where others could replace a folder above it.
        Descriptors are reused, so two files could have the same path one after the other; but a
        file's name has its checksum, so the dynamic linker, which identifies libraries by path,
        does not mistake one for another.
        """
        through = f"/proc/self/fd/{self.descriptor}"
        if self.descriptor is None or why_unsafe(self.path) is None or not os.path.exists(through):
            return str(self.path / name)
        return f"{through}/{name}"


@contextmanager
def open_folder(base: Path, *names: str, create: bool = False) -> Iterator[TrustedFolder]:
    """Opens the folder ``base / names[0] / ...`` and checks every level from ``base`` on.

    create: makes missing levels, those above ``base`` too, for this user alone.

    Raises:
        UntrustedError: a level is not this user's (or root's), or others can write to it.
        OSError: a level is missing, or cannot be made.
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
    """Makes a folder and the missing ones above it, each for this user alone.

    ``os.makedirs`` would give the ones above a mode that depends on the umask.
    """
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
