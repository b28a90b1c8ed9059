"""Where programs and libraries are made before they get their place in the cache."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import MiniDNNError
from ._folders import root
from ._temporary import TemporaryFolder
from ._trust import open_folder, why_unsafe


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for what is compiled and then run, removed at the end.

    It lies in the temporary folder, or in the cache where others could exchange the temporary
    folder's files (one that all may write to, without the sticky bit).

    Raises:
        MiniDNNError: others could exchange files in both.
        OSError: it cannot be made.
    """
    made = TemporaryFolder(_base())
    try:
        yield made.path
    finally:
        made.remove()


def _base() -> Path:
    given = Path(os.path.realpath(tempfile.gettempdir()))
    reason = why_unsafe(given)
    if reason is None:
        return given
    own = Path(os.path.realpath(root() / "temporary"))
    try:
        with open_folder(root(), "temporary", create=True):
            second = why_unsafe(own)
    except OSError as error:
        second = str(error)
    if second is not None:
        raise MiniDNNError(
            f"there is no folder to compile in that others cannot write to: {reason}; nor in the "
            f"cache: {second}; set TMPDIR to a folder of your own"
        )
    return own
