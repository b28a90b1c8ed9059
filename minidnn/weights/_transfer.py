"""One file that comes over HTTP in one or several requests.

The file grows where it is to be.  Beside it stands the server's validator (ETag or date).  A
request for the rest carries ``Range`` and ``If-Range`` (RFC 9110, sections 13.1.5 and 14): a
server that cannot do that, or whose file has changed, answers with the whole file, which then
replaces the part.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
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

from ..errors import DownloadError

_WIDTH = 24
_INTERVAL = 0.1


class ByteProgress:
    """One line that is written again and again; silent when it is off.

    Args:
        label: what is under way.
        on: None means: when standard error is a terminal.
    """

    def __init__(self, label: str, on: bool | None = None, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._on = self._stream.isatty() if on is None else on
        self._label = label
        self._began = self._drawn = time.monotonic()
        self._first: int | None = None
        self._length = 0

    def update(self, done: int, total: int | None) -> None:
        """Says how many of how many bytes (None: unknown) are there."""
        now = time.monotonic()
        if self._first is None:
            self._first = done  # what an earlier download left does not count as speed
        if self._on and (now - self._drawn >= _INTERVAL or done == total):
            self._drawn = now
            self._draw(done, total, (done - self._first) / max(now - self._began, 1e-3))

    def close(self) -> None:
        """Ends the line."""
        if self._length:
            print(file=self._stream, flush=True)
            self._length = 0

    def _draw(self, done: int, total: int | None, speed: float) -> None:
        text = f"{self._label} {_size(done)}"
        if total:
            filled = min(_WIDTH, _WIDTH * done // total)
            bar = "#" * filled + "." * (_WIDTH - filled)
            text = f"{self._label} [{bar}] {100 * done / total:3.0f} % of {_size(total)}"
        if speed > 0:
            text += f", {_size(speed)}/s"
            if total and total > done:
                seconds = int((total - done) / speed)
                text += f", {seconds // 60}:{seconds % 60:02d} left"
        print("\r" + text.ljust(self._length), end="", file=self._stream, flush=True)
        self._length = len(text)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


CHUNK = 1 << 18
MAX_BYTES = 4 << 30

#: Seconds in which a connection must be made: a firewall that drops packets never answers.
CONNECT_TIMEOUT = 10.0


class TryAgain(Exception):
    """An attempt failed in a way that another one may not."""


class Unreachable(TryAgain):
    """No server answered: there is no network, name, or way to it."""


class Transfer:
    """The state of one download across its attempts.

    ``resumed`` says whether the last answer continued an earlier part.
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
        """Bytes that are there."""
        try:
            return self.target.stat().st_size
        except FileNotFoundError:
            return 0

    def digest(self) -> str:
        """The SHA-256 of what is there."""
        with self._disk_errors(), open(self.target, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def delete(self) -> None:
        """Empties the file; it is not removed, because the lock of other processes is on it."""
        with self._disk_errors():
            os.truncate(self.target, 0)
        self.forget_validator()

    def forget_validator(self) -> None:
        """Removes the file beside the partial one."""
        self._validator_file.unlink(missing_ok=True)

    def attempt(self, bar: ByteProgress) -> None:
        """One request.  Returns when the file seems complete.

        Raises:
            Unreachable: no connection could be made.
            TryAgain: the network or the server failed; what came is in the file.
            DownloadError: another attempt would not help.
        """
        have, validator = self.size, self._validator()
        if not validator:
            have = 0  # nothing says that the rest would be of the same file
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
        """Where in the file the answer begins, and how long the file is, if that is known."""
        if headers.get("Content-Encoding", "identity") != "identity":
            raise self._error(
                f"the server sends it with Content-Encoding {headers['Content-Encoding']!r}, "
                "which was not asked for"
            )
        if status == 206:
            sent = headers.get("Content-Range", "")
            match = re.fullmatch(r"bytes (\d{1,18})-\d+/(\d{1,18}|\*)", sent)
            if not match or int(match[1]) != have:
                self.delete()
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
            kept = json.loads(self._validator_file.read_text())
        except (OSError, ValueError):  # none was kept, or not all of it: start from nothing
            return ""
        fits = isinstance(kept, dict) and kept.get("url") == self.url
        value = kept.get("validator") if fits else ""
        return value if isinstance(value, str) and re.fullmatch("[ -~]{1,200}", value) else ""

    def _remember_validator(self, headers: Message) -> None:
        """A weak ETag does not promise equal bytes, so it cannot be used for parts."""
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
            said = f"the server answers {error.code} {error.reason}"
            if error.code == 416:  # the part is longer than the server's file
                self.delete()
                raise TryAgain(said) from error
            if error.code in (408, 425, 429) or error.code >= 500:
                raise TryAgain(said) from error
            raise self._error(said) from error
        except urllib.error.URLError as error:  # urllib wraps what fails before an answer in it
            reason = error.reason
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise self._error(f"its certificate is not valid: {reason}") from error
            host = urllib.parse.urlsplit(self.url).netloc
            why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            if isinstance(reason, TimeoutError):
                why = f"nothing came for {min(self._timeout, CONNECT_TIMEOUT):g} s"
            raise Unreachable(f"no connection to {host}: {why}") from error
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
    """Follows a redirection, but not from https to anything weaker, nor to other schemes."""

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
    """A connection that is made within ``CONNECT_TIMEOUT``, and then has its own timeout."""

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
