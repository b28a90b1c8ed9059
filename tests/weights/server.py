"""A local HTTP server that misbehaves as planned."""

from __future__ import annotations

import hashlib
import http.server
import re
import sys
import threading
import time
from typing import Any

import numpy as np

from minidnn.weights.download import CHUNK

BODY = np.random.default_rng(0).bytes(5 * CHUNK + 1234)
SHA = hashlib.sha256(BODY).hexdigest()
QUICK: dict[str, Any] = {"timeout": 10.0, "backoff": 0.01}


class Plan:
    """How the server answers; requests are recorded."""

    def __init__(self) -> None:
        self.body = BODY
        self.etag: str | None = '"v1"'
        self.modified: str | None = None
        self.ranges = True
        self.status: list[int] = []  # answers before the real ones
        self.cut: list[int | None] = []  # bytes after which a connection ends, per request
        self.stall: list[int | None] = []  # bytes after which nothing comes, per request
        self.length: int | None = None  # what Content-Length says
        self.chunked = False
        self.headers: dict[str, str] = {}
        self.content_range: str | None = None
        self.redirect: str | None = None
        self.delay = 0.0
        self.requests: list[tuple[str, str | None, str | None]] = []
        self.release = threading.Event()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    plan: Plan

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        plan = self.plan
        plan.requests.append((self.path, self.headers["Range"], self.headers["If-Range"]))
        self.close_connection = True
        if plan.redirect and not self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", plan.redirect)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if plan.status and (status := plan.status.pop(0)) != 200:
            if status == 206:
                self.send_response(206)
                self.send_header("Content-Range", plan.content_range or "")
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self.send_error(status)
            return
        begin = self.begin()
        if begin is None:
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if begin else 200)
        if begin:
            span = f"bytes {begin}-{len(plan.body) - 1}/{len(plan.body)}"
            self.send_header("Content-Range", plan.content_range or span)
        for name, value in [("ETag", plan.etag), ("Last-Modified", plan.modified)]:
            if value:
                self.send_header(name, value)
        for name, value in plan.headers.items():
            self.send_header(name, value)
        self.send_body(plan.body[begin:])

    def begin(self) -> int | None:
        plan, asked, condition = self.plan, self.headers["Range"], self.headers["If-Range"]
        if not asked or not plan.ranges or condition not in (plan.etag, plan.modified):
            return 0
        match = re.fullmatch(r"bytes=(\d+)-", asked)
        assert match
        return int(match[1]) if int(match[1]) < len(plan.body) else None

    def send_body(self, data: bytes) -> None:
        plan = self.plan
        if plan.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            said = len(data) if plan.length is None else plan.length
            self.send_header("Content-Length", str(said))
        self.end_headers()
        cut = plan.cut.pop(0) if plan.cut else None
        stall = plan.stall.pop(0) if plan.stall else None
        limit = next((n for n in (cut, stall) if n is not None), len(data))
        for at in range(0, limit, 1 << 16):
            piece = data[at : min(at + (1 << 16), limit)]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if plan.chunked else piece)
            time.sleep(plan.delay)
        if stall is not None:
            self.wfile.flush()
            plan.release.wait(20)
        elif plan.chunked and cut is None:
            self.wfile.write(b"0\r\n\r\n")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    # A client that gives up breaks the pipe: that is what these tests are about.
    def handle_error(self, request: Any, client_address: Any) -> None:
        assert isinstance(sys.exc_info()[1], ConnectionError)
