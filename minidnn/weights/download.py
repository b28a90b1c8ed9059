"""Fetches a file: resumes what was interrupted, checks what came, shares it between processes.

Only a file with the right hash gets its name.  How a single request goes is in :mod:`._transfer`.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
import urllib.parse
from pathlib import Path
from typing import Any

from .. import cache
from ..errors import DownloadError
from ._transfer import CHUNK, ByteProgress, Transfer, TryAgain, Unreachable

STORE_LIMIT = 8 << 30
STALLED_SECONDS = 300.0
"""Without any data, after which another process that downloads the same is no longer waited for."""

_log = logging.getLogger(__name__)


def fetch(url: str, hash_prefix: str, *, progress: bool | None = None, **options: Any) -> Path:
    """The file behind ``url`` in the cache, downloaded if it is not there.

    Many processes may ask at once: one downloads, the others wait for it.

    Args:
        url: http or https.
        hash_prefix: first hexadecimal digits of the file's SHA-256.
        progress: shows a bar; None means: when there is a terminal.
        options: ``timeout``, ``attempts`` and ``backoff`` of :func:`download`.

    Raises:
        DownloadError: see :func:`download`.
    """
    store, key = _place(url, hash_prefix)
    if (found := store.path(key)) is not None:
        return found
    part = store.workspace() / f".work-{key}"
    with cache.one_at_a_time(
        f"download-{key[:16]}", f"downloads {url}", STALLED_SECONDS, alive=lambda: _size(part)
    ) as alone:
        if (found := store.path(key)) is not None:
            return found
        if not alone:  # whoever has the turn may yet go on with that file
            part = part.with_name(f"{part.name}-{os.getpid()}-{secrets.token_hex(4)}")
        download(url, part, hash_prefix, progress=progress, **options)
        return store.put_file(key, part, label=Path(_file_name(url)).stem)


def is_fetched(url: str, hash_prefix: str) -> bool:
    """Whether :func:`fetch` would find the file in the cache."""
    store, key = _place(url, hash_prefix)
    return store.path(key) is not None


def _place(url: str, hash_prefix: str) -> tuple[cache.CacheStore, str]:
    """Where in the cache the file is kept."""
    suffix = Path(_file_name(url)).suffix
    suffix = suffix if re.fullmatch(r"\.[A-Za-z0-9_]+", suffix) else ""
    return cache.CacheStore("weights", suffix, STORE_LIMIT), cache.digest(url, hash_prefix)


def download(
    url: str,
    target: Path,
    hash_prefix: str,
    *,
    progress: bool | None = None,
    timeout: float = 30.0,
    attempts: int = 5,
    backoff: float = 1.0,
) -> None:
    """Downloads to ``target``, going on from what an earlier call left there.

    Args:
        url: http or https.
        target: of the file; it also is the partial file.  ``target`` with ``.json`` appended keeps
            what is needed to resume, until the download is complete.
        hash_prefix: first hexadecimal digits (8 to 64) of the file's SHA-256.
        progress: shows a bar; None means: when there is a terminal.
        timeout: seconds without any data after which a connection is given up.
        attempts: how many in a row may bring nothing new.  A server that no attempt has reached
            is not tried again.
        backoff: seconds before the second attempt; doubled each time.

    Raises:
        DownloadError: the URL is not http or https; the server refuses; every attempt failed (the
            part is kept); the hash is wrong (the file is deleted); the disk is full.
        KeyboardInterrupt: passed on; the part is kept.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError(f"cannot download {url!r}: valid are http and https")
    if not re.fullmatch("[0-9a-f]{8,64}", hash_prefix):
        raise DownloadError(
            f"cannot download {url!r}: the hash prefix {hash_prefix!r} is not 8 to 64 hexadecimal "
            "digits"
        )
    transfer = Transfer(url, target, timeout)
    if transfer.size and transfer.digest().startswith(hash_prefix):
        transfer.forget_validator()  # an earlier call was killed after its last byte
        return
    bar = ByteProgress(_file_name(url), progress)
    _log.info("downloading %s", url)
    failed, best, reached = 0, transfer.size, False
    try:
        while True:
            try:
                transfer.attempt(bar)
                if _is_right(transfer, hash_prefix):
                    return
            except TryAgain as error:
                # What counts is that the file has grown: a server that always breaks off at the
                # same place must not keep us for ever.
                failed = 1 if transfer.size >= best + CHUNK else failed + 1
                best = max(best, transfer.size)
                reached = reached or not isinstance(error, Unreachable)
                if failed >= attempts or not reached:
                    raise _gave_up(transfer, error, attempts if reached else 1) from error
                pause = backoff * 2 ** (failed - 1)
                bar.close()
                _log.warning(
                    "downloading %s: %s; attempt %d of %d follows in %g s",
                    *(url, error, failed + 1, attempts, pause),
                )
                time.sleep(pause)
    finally:
        bar.close()


def _gave_up(transfer: Transfer, error: TryAgain, attempts: int) -> DownloadError:
    tried = f" (after {attempts} attempts in a row)" if attempts > 1 else ""
    size = transfer.size
    kept = f"; {size} bytes are kept, and the next call goes on from there" if size else ""
    return DownloadError(f"cannot download {transfer.url}: {error}{tried}{kept}")


def _is_right(transfer: Transfer, hash_prefix: str) -> bool:
    """Compares the hash; a wrong file is deleted.

    Returns False when the file was put together from parts, so that a fresh one may be right.
    """
    found, size = transfer.digest(), transfer.size
    if found.startswith(hash_prefix):
        transfer.forget_validator()
        return True
    transfer.delete()
    if transfer.resumed:
        _log.warning("%s: the resumed file has a wrong hash; starting anew", transfer.url)
        return False
    raise DownloadError(
        f"{transfer.url} sent {size} bytes with SHA-256 {found}; it should begin with "
        f"{hash_prefix}; the file was deleted"
    )


def _file_name(url: str) -> str:
    return Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).name or "download"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
