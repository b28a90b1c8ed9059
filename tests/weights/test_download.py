"""Downloads from a local HTTP server that misbehaves in every way that servers do."""

from __future__ import annotations

import hashlib
import http.server
import io
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minidnn import cache
from minidnn.errors import DownloadError
from minidnn.weights import load_weights, zoo
from minidnn.weights._progress import ByteProgress
from minidnn.weights._transfer import CHUNK
from minidnn.weights.download import download, fetch

ROOT = Path(__file__).parents[2]
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


@pytest.fixture
def plan() -> Plan:
    return Plan()


@pytest.fixture
def url(plan: Plan) -> Iterator[str]:
    handler = type("PlannedHandler", (Handler,), {"plan": plan})
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/models/net-{SHA[:8]}.pth"
        plan.release.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "net.pth"


def left(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir() if path.is_file())


def good(url: str, target: Path, **options: Any) -> None:
    """Downloads, and checks what is left."""
    download(url, target, SHA[:8], **QUICK | options)
    assert target.read_bytes() == BODY
    assert left(target) == [target.name]


def test_plain(url: str, plan: Plan, target: Path) -> None:
    good(url, target)
    assert plan.requests == [(f"/models/net-{SHA[:8]}.pth", None, None)]


def test_chunked(url: str, plan: Plan, target: Path) -> None:
    plan.chunked = True
    good(url, target)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("validator", ["etag", "modified"])
def test_truncated_connections_are_resumed(
    url: str, plan: Plan, target: Path, validator: str, chunked: bool
) -> None:
    plan.chunked = chunked
    plan.cut = [300_000, 200_000, 5]
    if validator == "modified":
        plan.etag, plan.modified = 'W/"weak"', "Fri, 20 Nov 2026 12:00:00 GMT"
    good(url, target)
    condition = plan.etag if validator == "etag" else plan.modified
    assert [entry[1:] for entry in plan.requests] == [
        (None, None),
        ("bytes=300000-", condition),
        ("bytes=500000-", condition),
        ("bytes=500005-", condition),
    ]


def test_stalled_connections_are_resumed(url: str, plan: Plan, target: Path) -> None:
    plan.stall = [300_000]
    good(url, target, timeout=1.0)
    assert [entry[1] for entry in plan.requests] == [None, "bytes=300000-"]


def test_a_server_that_never_sends(url: str, plan: Plan, target: Path) -> None:
    plan.stall = [0, 0]
    pattern = r"cannot download http.*: nothing came for 0.2 s \(after 2 attempts in a row\); 0 byt"
    with pytest.raises(DownloadError, match=pattern):
        download(url, target, SHA[:8], timeout=0.2, attempts=2, backoff=0.01)


def test_a_server_without_ranges(url: str, plan: Plan, target: Path) -> None:
    plan.ranges = False
    plan.cut = [300_000]
    good(url, target)
    assert [entry[1] for entry in plan.requests] == [None, "bytes=300000-"]


def test_without_validator_nothing_is_resumed(url: str, plan: Plan, target: Path) -> None:
    plan.etag = None
    plan.cut = [300_000]
    good(url, target)
    assert [entry[1] for entry in plan.requests] == [None, None]


def test_a_file_that_changes_meanwhile(url: str, plan: Plan, target: Path) -> None:
    plan.body, plan.etag, plan.cut = b"old" * CHUNK, '"old"', [300_000]
    with pytest.raises(DownloadError, match=r"300000 bytes are kept, and the next call goes on"):
        download(url, target, SHA[:8], attempts=1, **QUICK)
    plan.body, plan.etag = BODY, '"new"'
    good(url, target)
    assert plan.requests[-1][1:] == ("bytes=300000-", '"old"')


def test_a_changed_file_with_the_same_tag(url: str, plan: Plan, target: Path) -> None:
    """The parts do not fit together: the hash says so, and all is fetched anew, once."""
    plan.body, plan.cut = bytes(len(BODY)), [300_000]
    with pytest.raises(DownloadError, match="bytes are kept"):
        download(url, target, SHA[:8], attempts=1, **QUICK)
    plan.body = BODY
    good(url, target)
    assert [entry[1] for entry in plan.requests] == [None, "bytes=300000-", None]


def test_resume_in_another_process(url: str, plan: Plan, target: Path) -> None:
    plan.cut = [400_000]
    with pytest.raises(DownloadError, match=r"the connection ended after 400000 of \d+ bytes"):
        download(url, target, SHA[:8], attempts=1, **QUICK)
    assert left(target) == ["net.pth", "net.pth.json"]
    script = (
        "from pathlib import Path; from minidnn.weights.download import download;"
        f"download({url!r}, Path({str(target)!r}), {SHA[:8]!r})"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
    assert target.read_bytes() == BODY
    assert plan.requests[1][1] == "bytes=400000-"


def test_complete_but_not_yet_renamed(url: str, plan: Plan, target: Path) -> None:
    target.write_bytes(BODY)
    good(url, target)
    assert plan.requests == []


def test_a_part_that_is_too_long(url: str, plan: Plan, target: Path) -> None:
    plan.cut = [300_000]
    with pytest.raises(DownloadError):
        download(url, target, SHA[:8], attempts=1, **QUICK)
    target.write_bytes(bytes(len(BODY) + 5))
    good(url, target)  # 416, then anew


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "x"}', '{"validator": 5}', "\0"])
def test_a_damaged_validator_file(url: str, plan: Plan, target: Path, text: str) -> None:
    target.write_bytes(b"something")
    target.with_name("net.pth.json").write_text(text)
    good(url, target)
    assert plan.requests[0][1] is None


@pytest.mark.parametrize("answer", ["bytes 5-9/10", "bytes 0-99/100", "", "nonsense"])
def test_a_wrong_part(url: str, plan: Plan, target: Path, answer: str) -> None:
    plan.cut = [300_000]
    plan.content_range = answer or "bytes"
    good(url, target)
    assert [entry[1] for entry in plan.requests] == [None, "bytes=300000-", None]


def test_corrupt(url: str, plan: Plan, target: Path) -> None:
    plan.body = BODY[:-1] + b"x"
    pattern = rf"sent {len(BODY)} bytes with SHA-256 [0-9a-f]{{64}}; it should begin with {SHA[:8]}"
    with pytest.raises(DownloadError, match=pattern):
        download(url, target, SHA[:8], **QUICK)
    assert target.read_bytes() == b""
    assert left(target) == ["net.pth"]
    assert len(plan.requests) == 1


@pytest.mark.parametrize("length", [len(BODY) - 100, 0])
def test_content_length_too_small(url: str, plan: Plan, target: Path, length: int) -> None:
    plan.length = length
    with pytest.raises(DownloadError, match=f"sent {length} bytes with SHA-256"):
        download(url, target, SHA[:8], **QUICK)


def test_content_length_too_large(url: str, plan: Plan, target: Path) -> None:
    plan.length = len(BODY) + 100
    plan.ranges = False
    pattern = rf"the connection ended after {len(BODY)} of {len(BODY) + 100} bytes \(after 2"
    with pytest.raises(DownloadError, match=pattern):
        download(url, target, SHA[:8], attempts=2, **QUICK)
    plan.length = None
    good(url, target)  # what is there is complete
    assert len(plan.requests) == 2


def test_content_length_beyond_reason(url: str, plan: Plan, target: Path) -> None:
    plan.length = 10**13
    with pytest.raises(DownloadError, match="have 10000000000000 bytes; at most 4294967296"):
        download(url, target, SHA[:8], **QUICK)


def test_a_server_that_always_breaks_off_at_the_same_place(
    url: str, plan: Plan, target: Path
) -> None:
    plan.ranges = False
    plan.cut = [2 * CHUNK] * 100
    with pytest.raises(DownloadError, match=r"after 3 attempts in a row"):
        download(url, target, SHA[:8], attempts=3, **QUICK)
    assert len(plan.requests) == 3


def test_progress_resets_the_count_of_attempts(url: str, plan: Plan, target: Path) -> None:
    plan.cut = [CHUNK] * 5
    good(url, target, attempts=2)
    assert len(plan.requests) == 6


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_passing_server_errors(url: str, plan: Plan, target: Path, status: int) -> None:
    plan.status = [status, status]
    good(url, target)
    assert len(plan.requests) == 3


def test_lasting_server_errors(url: str, plan: Plan, target: Path) -> None:
    plan.status = [500] * 10
    with pytest.raises(DownloadError, match=r"the server answers 500 Internal .* \(after 3 attemp"):
        download(url, target, SHA[:8], attempts=3, **QUICK)
    assert len(plan.requests) == 3


@pytest.mark.parametrize(("status", "reason"), [(404, "Not Found"), (403, "Forbidden")])
def test_refusals_are_final(url: str, plan: Plan, target: Path, status: int, reason: str) -> None:
    plan.status = [status]
    with pytest.raises(DownloadError, match=f"{url}: the server answers {status} {reason}"):
        download(url, target, SHA[:8], **QUICK)
    assert len(plan.requests) == 1


def test_redirects(url: str, plan: Plan, target: Path) -> None:
    plan.redirect = "/moved"
    plan.cut = [300_000]
    good(url, target)
    assert [entry[:2] for entry in plan.requests][1::2] == [
        ("/moved", None),
        ("/moved", "bytes=300000-"),
    ]


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
def test_redirects_to_other_schemes(url: str, plan: Plan, target: Path, place: str) -> None:
    plan.redirect = place
    with pytest.raises(DownloadError, match=r"redirects? to|redirection to|answers 302"):
        download(url, target, SHA[:8], **QUICK)
    assert target.exists() is False


def test_redirect_from_https_to_http() -> None:
    import urllib.request

    from minidnn.weights._transfer import _Redirects

    request = urllib.request.Request("https://example.org/a")
    arguments: Any = (io.BytesIO(), 302, "Found", {})
    with pytest.raises(DownloadError, match=r"redirects to 'http://example.org/b'; valid is https"):
        _Redirects().redirect_request(request, *arguments, "http://example.org/b")
    followed = _Redirects().redirect_request(request, *arguments, "https://example.org/b")
    assert followed is not None


def test_endless_redirects(url: str, plan: Plan, target: Path) -> None:
    plan.redirect = "/again"
    with pytest.raises(DownloadError, match="answers 302"):
        download(url, target, SHA[:8], **QUICK)


def test_unasked_compression(url: str, plan: Plan, target: Path) -> None:
    plan.headers = {"Content-Encoding": "gzip"}
    with pytest.raises(DownloadError, match="Content-Encoding 'gzip', which was not asked"):
        download(url, target, SHA[:8], **QUICK)


def test_nobody_listens(target: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DownloadError, match=r"Connection refused.* \(after 2 attempts"):
        download(f"http://127.0.0.1:{port}/x", target, SHA[:8], attempts=2, **QUICK)


def test_no_http(target: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"220 mail.example.org\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        with pytest.raises(DownloadError, match="220 mail"):
            download(url, target, SHA[:8], attempts=1, **QUICK)
        thread.join()


@pytest.mark.parametrize(
    ("url", "prefix", "message"),
    [
        (
            "file:///etc/passwd",
            SHA,
            "cannot download 'file:///etc/passwd': valid are http",
        ),
        ("ftp://127.0.0.1/x", SHA, "valid are http and https"),
        ("http://127.0.0.1/x", "abc", "the hash prefix 'abc' is not 8 to 64 hexadecimal digits"),
        ("http://127.0.0.1/x", "", "the hash prefix '' is not"),
    ],
)
def test_bad_arguments(target: Path, url: str, prefix: str, message: str) -> None:
    with pytest.raises(DownloadError, match=message):
        download(url, target, prefix)


def test_full_disk(url: str, target: Path) -> None:
    script = f"""
import resource
from pathlib import Path
from minidnn.weights.download import download
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    download({url!r}, Path({str(target)!r}), {SHA[:8]!r})
except OSError as error:
    print(type(error).__name__, error)
"""
    output = subprocess.check_output([sys.executable, "-c", script], text=True, cwd=ROOT)
    assert output.startswith(f"DownloadError cannot download {url}: the disk: [Errno 27] File too")
    assert target.stat().st_size == 200_000
    good(url, target)


def test_interrupt_keeps_the_part(url: str, plan: Plan, target: Path) -> None:
    plan.stall = [300_000]
    script = (
        "from pathlib import Path; from minidnn.weights.download import download;"
        f"download({url!r}, Path({str(target)!r}), {SHA[:8]!r})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    deadline = time.monotonic() + 20
    while not (target.exists() and target.stat().st_size == 300_000):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert errors.endswith("KeyboardInterrupt\n")
    assert target.stat().st_size == 300_000
    good(url, target)
    assert plan.requests[-1][1] == "bytes=300000-"


# --- into the cache ---


def test_fetch_asks_once(url: str, plan: Plan, cache_root: Path) -> None:
    path = fetch(url, SHA[:8], **QUICK)
    assert path.read_bytes() == BODY
    assert cache_root in path.parents
    assert path.name.endswith(f"-net_{SHA[:8]}.pth")
    assert fetch(url, SHA[:8], **QUICK) == path
    assert len(plan.requests) == 1
    assert [(e.kind, e.size) for e in cache.entries()] == [("weights", len(BODY))]
    assert cache.usage()["weights"].unfinished == 0


def test_a_damaged_entry_is_fetched_again(url: str, plan: Plan) -> None:
    path = fetch(url, SHA[:8], **QUICK)
    path.write_bytes(BODY[:-1])
    with pytest.warns(UserWarning, match="is damaged"):
        path = fetch(url, SHA[:8], **QUICK)
    assert path.read_bytes() == BODY
    assert len(plan.requests) == 2


def test_fetch_resumes(url: str, plan: Plan) -> None:
    plan.cut = [300_000]
    with pytest.raises(DownloadError, match="300000 bytes are kept"):
        fetch(url, SHA[:8], attempts=1, **QUICK)
    assert cache.usage()["weights"].unfinished >= 300_000
    assert fetch(url, SHA[:8], **QUICK).read_bytes() == BODY
    assert plan.requests[-1][1] == "bytes=300000-"
    assert cache.usage()["weights"].unfinished == 0


def test_many_processes_download_once(url: str, plan: Plan) -> None:
    plan.delay = 0.01
    script = (
        "import hashlib; from minidnn.weights.download import fetch;"
        f"path = fetch({url!r}, {SHA[:8]!r}, progress=False);"
        f"assert hashlib.sha256(path.read_bytes()).hexdigest() == {SHA!r}; print(path)"
    )
    command = [sys.executable, "-W", "error", "-c", script]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(4)
    ]
    paths = {worker.communicate(timeout=60)[0] for worker in workers}
    assert [worker.returncode for worker in workers] == [0] * 4
    assert len(paths) == 1
    assert len(plan.requests) == 1


def test_a_waiting_process_takes_over_from_one_that_is_killed(url: str, plan: Plan) -> None:
    plan.stall = [300_000]
    script = f"from minidnn.weights.download import fetch; fetch({url!r}, {SHA[:8]!r})"
    first = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    deadline = time.monotonic() + 20
    while cache.usage().get("weights", cache.Usage(0, 0, 0)).unfinished < 300_000:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found: list[Path] = []
    second = threading.Thread(target=lambda: found.append(fetch(url, SHA[:8], **QUICK)))
    second.start()
    time.sleep(0.1)
    assert not found
    first.kill()
    first.wait()
    second.join(20)
    assert found[0].read_bytes() == BODY
    assert plan.requests[-1][1] == "bytes=300000-"


def test_without_locks(url: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert fetch(url, SHA[:8], **QUICK).read_bytes() == BODY


def test_into_a_cache_that_cannot_be_written(
    url: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="cannot be written"):
        path = fetch(url, SHA[:8], **QUICK)
    assert path.read_bytes() == BODY
    assert fetch(url, SHA[:8], **QUICK) == path
    assert len(plan.requests) == 1


def test_load_weights_by_name(
    url: str, plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = io.BytesIO()
    torch.save({"denselayer1.norm.1.weight": torch.arange(3.0)}, stream)
    plan.body = stream.getvalue()
    sha = hashlib.sha256(plan.body).hexdigest()
    mine = zoo.KnownWeights(
        "tiny", "IMAGENET1K_V1", "Tiny_Weights", url.replace(SHA[:8], sha[:8]), 256, 224, 0.1
    )
    monkeypatch.setattr(zoo, "KNOWN_WEIGHTS", (mine,))
    caplog.set_level(logging.INFO)
    for name in ("tiny", "Tiny_Weights.IMAGENET1K_V1", "tiny.DEFAULT"):
        found = load_weights(name)
        assert list(found) == ["denselayer1.norm1.weight"]
        assert found["denselayer1.norm1.weight"].tolist() == [0, 1, 2]
    assert len(plan.requests) == 1
    assert f"downloading {mine.url}" in caplog.text


# --- the bar ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_silent_without_a_terminal(
    url: str, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good(url, target)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal(
    url: str, plan: Plan, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    good(url, target)
    last = screen.getvalue().rstrip("\n").split("\r")[-1]
    assert last.startswith(f"net-{SHA[:8]}.pth [########################] 100 % of 1.3 MB")
    assert screen.getvalue().endswith("\n")


def test_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 2.0, 2.05, 3.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    screen = io.StringIO()
    bar = ByteProgress("x", True, screen)
    bar.update(50_000_000, 100_000_000)  # resumed there
    bar.update(60_000_000, 100_000_000)
    bar.update(61_000_000, 100_000_000)  # too soon to draw again
    bar.update(70_000_000, None)
    bar.close()
    lines = [line.rstrip() for line in screen.getvalue().rstrip("\n").split("\r")]
    assert lines == [
        "",
        "x [############............]  50 % of 100.0 MB",
        "x [##############..........]  60 % of 100.0 MB, 5.0 MB/s, 0:08 left",
        "x 70.0 MB, 6.7 MB/s",
    ]
