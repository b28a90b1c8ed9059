"""Downloads files: resumes interrupted downloads, checks hashes, shares files between processes.

Only a file with the right hash enters the cache.  It is downloaded by one or several HTTP requests,
each of which appends to the partial file; a second file keeps the server's validator (ETag or
date).  A request that resumes a download has the headers ``Range`` and ``If-Range`` (RFC 9110,
sections 13.1.5 and 14): a server that does not support these, or whose file has changed, answers
with the whole file, which then replaces the partial one.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import logging
import os
import re
import secrets
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import IO, Any, TextIO

from .. import cache
from ..errors import DownloadError

#: Characters of a progress bar.
_WIDTH = 24
#: Seconds between two updates of its line.
_INTERVAL = 0.1


class ByteProgress:
    """A progress bar in one line of a terminal, which is rewritten at every update.

    Args:
        label: the beginning of the line.
        on: whether the bar is shown; None means: if the stream is a terminal.
        stream: where the line is written; None means standard error.
    """

    def __init__(self, label: str, on: bool | None = None, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._on = self._stream.isatty() if on is None else on
        self._label = label
        self._began = self._drawn = time.monotonic()
        self._first: int | None = None
        self._length = 0

    def update(self, done: int, total: int | None) -> None:
        """Shows the number of bytes that are there, of a total that may be unknown (None)."""
        now = time.monotonic()
        if self._first is None:
            self._first = done  # bytes of an earlier download do not count as speed
        if self._on and (now - self._drawn >= _INTERVAL or done == total):
            self._drawn = now
            self._draw(done, total, (done - self._first) / max(now - self._began, 1e-3))

    def close(self) -> None:
        """Ends the line."""
        if self._length:
            print(file=self._stream, flush=True)
            self._length = 0

    def _draw(self, done: int, total: int | None, speed: float) -> None:
        text = f"{self._label} {_size_text(done)}"
        if total:
            filled = min(_WIDTH, _WIDTH * done // total)
            bar = "#" * filled + "." * (_WIDTH - filled)
            text = f"{self._label} [{bar}] {100 * done / total:3.0f} % of {_size_text(total)}"
        if speed > 0:
            text += f", {_size_text(speed)}/s"
            if total and total > done:
                seconds = int((total - done) / speed)
                text += f", {seconds // 60}:{seconds % 60:02d} left"
        print("\r" + text.ljust(self._length), end="", file=self._stream, flush=True)
        self._length = len(text)


def _size_text(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


#: Bytes that are read from a response at once, at most; also the least progress that counts.
CHUNK = 1 << 18
#: The largest file that is downloaded, in bytes.
MAX_BYTES = 4 << 30

#: Seconds after which connecting fails: a firewall that drops packets never answers.
CONNECT_TIMEOUT = 10.0


class TryAgain(Exception):
    """An attempt failed, and another one may succeed."""


class Unreachable(TryAgain):
    """No connection could be made: there is no network, host name or route."""


class Transfer:
    """The state of one download across its attempts.

    ``resumed`` says whether the last response continued the partial file.
    """

    def __init__(self, url: str, target: Path, timeout: float) -> None:
        self.url = url
        self.target = target
        self.resumed = False
        self._validator_file = target.with_name(target.name + ".json")
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_Redirects, _Http, _Https)

    @property
    def size(self) -> int:
        """The size of the partial file, in bytes."""
        return _size(self.target)

    def digest(self) -> str:
        """The SHA-256 of the partial file, in hexadecimal digits."""
        with self._disk_errors(), open(self.target, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def empty(self) -> None:
        """Empties the partial file, if there is one, and removes the validator's file."""
        with self._disk_errors(), contextlib.suppress(FileNotFoundError):
            os.truncate(self.target, 0)
        self.forget_validator()

    def forget_validator(self) -> None:
        """Removes the file that keeps the server's validator."""
        with self._disk_errors():
            self._validator_file.unlink(missing_ok=True)

    def attempt(self, bar: ByteProgress) -> None:
        """Sends one request.  Returns when the file seems complete.

        Raises:
            Unreachable: no connection could be made.
            TryAgain: the network or the server failed; the bytes received are in the file.
            DownloadError: another attempt would not help.
        """
        have, validator = self.size, self._validator()
        if not validator:
            have = 0  # the rest might belong to another version of the file
        headers = {"User-Agent": "minidnn", "Accept-Encoding": "identity"}
        if have:
            headers |= {"Range": f"bytes={have}-", "If-Range": validator}
        request = urllib.request.Request(self.url, headers=headers)
        with self._network_errors():
            answer = self._opener.open(request, timeout=self._timeout)
        with answer:
            begin, total = self._judge(answer.status, answer.headers, have)
            self.resumed = begin > 0
            self._remember_validator(answer.headers)
            self._receive(answer, begin, total, bar)

    def _judge(self, status: int, headers: Message, have: int) -> tuple[int, int | None]:
        """The offset in the file where the response begins, and the size of the whole file, if that
        is known."""
        if headers.get("Content-Encoding", "identity") != "identity":
            raise self._error(
                f"the server sends it with Content-Encoding {headers['Content-Encoding']!r}, "
                "which was not asked for"
            )
        if status == 206:
            sent = headers.get("Content-Range", "")
            match = re.fullmatch(r"bytes (\d{1,18})-\d+/(\d{1,18}|\*)", sent)
            if not match or int(match[1]) != have:
                self.empty()
                raise TryAgain(f"the server was asked for bytes from {have} and sends {sent!r}")
            begin, length = have, match[2]
        elif status == 200:
            begin, length = 0, headers.get("Content-Length", "")
        else:
            raise TryAgain(f"the server answers with the status {status}")
        total = int(length) if re.fullmatch(r"\d{1,18}", length) else None
        if total is not None and total > MAX_BYTES:
            raise self._error(f"it is said to have {total} bytes; at most {MAX_BYTES} are valid")
        return begin, total

    def _receive(self, answer: Any, begin: int, total: int | None, bar: ByteProgress) -> None:
        done = begin
        mode = "r+b" if self.target.exists() else "xb"
        with self._disk_errors(), open(self.target, mode) as file:
            file.truncate(begin)
            file.seek(begin)
            while True:
                bar.update(done, total)
                with self._network_errors():
                    data = answer.read1(CHUNK)
                if not data:
                    break
                done += len(data)
                if done > MAX_BYTES:
                    raise self._error(f"over {MAX_BYTES} bytes have come")
                file.write(data)
        if total is not None and done < total:
            raise TryAgain(f"the connection ended after {done} of {total} bytes")

    def _validator(self) -> str:
        try:
            saved = json.loads(self._validator_file.read_text())
        except (OSError, ValueError):  # it is missing or damaged: start anew
            return ""
        is_same_url = isinstance(saved, dict) and saved.get("url") == self.url
        value = saved.get("validator") if is_same_url else ""
        return value if isinstance(value, str) and re.fullmatch("[ -~]{1,200}", value) else ""

    def _remember_validator(self, headers: Message) -> None:
        """Keeps the validator of a response; a weak ETag, which does not promise equal bytes, is
        not used."""
        etag = headers.get("ETag", "")
        validator = etag if etag.startswith('"') else headers.get("Last-Modified", "")
        if validator or not self.resumed:
            text = json.dumps({"url": self.url, "validator": validator})
            with self._disk_errors():
                self._validator_file.write_text(text)

    def _error(self, problem: str) -> DownloadError:
        return DownloadError(f"cannot download {self.url}: {problem}")

    @contextlib.contextmanager
    def _network_errors(self) -> Iterator[None]:
        try:
            yield
        except DownloadError:
            raise
        except urllib.error.HTTPError as error:
            error.close()
            answer = f"the server answers {error.code} {error.reason}"
            if error.code == 416:  # the partial file is longer than the server's file
                self.empty()
                raise TryAgain(answer) from error
            if error.code in (408, 425, 429) or error.code >= 500:
                raise TryAgain(answer) from error
            raise self._error(answer) from error
        except urllib.error.URLError as error:  # urllib's wrapper of errors before a response
            reason = error.reason
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise self._error(f"its certificate is not valid: {reason}") from error
            host = urllib.parse.urlsplit(self.url).netloc
            cause = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            if isinstance(reason, TimeoutError):
                cause = f"nothing came for {min(self._timeout, CONNECT_TIMEOUT):g} s"
            raise Unreachable(f"no connection to {host}: {cause}") from error
        except TimeoutError as error:
            raise TryAgain(f"nothing came for {self._timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise TryAgain(str(error) or type(error).__name__) from error

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except DownloadError:
            raise
        except OSError as error:
            raise self._error(f"the disk: {error}") from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections to http and https, but not from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        scheme = urllib.parse.urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme != "https"):
            raise DownloadError(
                f"cannot download {req.full_url}: the server redirects to {newurl!r}; valid is "
                f"{req.type}"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Soon(http.client.HTTPConnection):
    """A connection that uses ``CONNECT_TIMEOUT`` to connect, and its own timeout afterwards."""

    def connect(self) -> None:
        timeout, self.timeout = self.timeout, CONNECT_TIMEOUT
        if timeout is not None:
            self.timeout = min(timeout, CONNECT_TIMEOUT)
        super().connect()
        self.timeout = timeout
        self.sock.settimeout(timeout)


class _SoonSecure(_Soon, http.client.HTTPSConnection):
    pass


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Soon, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SoonSecure, req)


#: Size limit of the cache of weight files, in bytes.
STORE_LIMIT = 8 << 30
#: Seconds after which a process stops waiting for another one whose download receives no data.
STALLED_SECONDS = 300.0

_log = logging.getLogger(__name__)


def fetch(url: str, hash_prefix: str, *, progress: bool | None = None, **options: Any) -> Path:
    """Returns the path of the file in the cache, after downloading it if it is not there.

    Several processes may call this at once: one downloads, and the others wait for it.

    Args:
        url: http or https.
        hash_prefix: first hexadecimal digits of the file's SHA-256.
        progress: whether a bar is shown; None means: if standard error is a terminal.
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
        if not alone:  # the process with the lock may still write to that file
            part = part.with_name(f"{part.name}-{os.getpid()}-{secrets.token_hex(4)}")
        download(url, part, hash_prefix, progress=progress, **options)
        return store.put_file(key, part, label=Path(_file_name(url)).stem)


def is_fetched(url: str, hash_prefix: str) -> bool:
    """Whether :func:`fetch` would find the file in the cache."""
    store, key = _place(url, hash_prefix)
    return store.path(key) is not None


def _place(url: str, hash_prefix: str) -> tuple[cache.CacheStore, str]:
    """The cache that keeps the file, and its key there."""
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
    """Downloads to ``target``, and resumes a download that an earlier call has left there.

    Args:
        url: http or https.
        target: path of the file, also while it is partial.  A file with ``.json`` appended to this
            name keeps the server's validator until the download is complete.
        hash_prefix: first hexadecimal digits (8 to 64) of the file's SHA-256.
        progress: whether a bar is shown; None means: if standard error is a terminal.
        timeout: seconds without any data after which a connection is closed.
        attempts: how many attempts in a row may fail without receiving new data.  If the first one
            cannot connect, no other follows.
        backoff: seconds before the second attempt; doubled for each further one.

    Raises:
        DownloadError: the URL is not http or https; the server refuses; every attempt failed (the
            partial file is kept); the hash is wrong (the file is emptied); the disk is full.
        KeyboardInterrupt: passed on; the partial file is kept.
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
                reached = True
                if _is_right(transfer, hash_prefix):
                    return
            except TryAgain as error:
                # Failures are counted anew only if the file has grown: a server that always
                # disconnects at the same offset must not be tried forever.
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
    resumable = f"; {size} bytes are kept, and the next call goes on from there" if size else ""
    return DownloadError(f"cannot download {transfer.url}: {error}{tried}{resumable}")


def _is_right(transfer: Transfer, hash_prefix: str) -> bool:
    """Compares the hash, and empties a file with a wrong one.

    Returns False if that file was resumed, so that a new download may be right; raises
    DownloadError otherwise.
    """
    digest, size = transfer.digest(), transfer.size
    if digest.startswith(hash_prefix):
        transfer.forget_validator()
        return True
    transfer.empty()
    if transfer.resumed:
        _log.warning("%s: the resumed file has a wrong hash; starting anew", transfer.url)
        return False
    raise DownloadError(
        f"{transfer.url} sent {size} bytes with SHA-256 {digest}; it should begin with "
        f"{hash_prefix}; the file was emptied"
    )


def _file_name(url: str) -> str:
    return Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).name or "download"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
