"""Downloads from a local HTTP server that misbehaves in every way that servers do."""

from __future__ import annotations

import http.client
import io
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from minidnn.errors import DownloadError
from minidnn.weights.download import CHUNK, download
from tests.weights.server import BODY, QUICK, SHA, Plan

ROOT = Path(__file__).parents[2]


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
    pattern = r"cannot download http.*: nothing came for 0.2 s \(after 2 attempts in a row\)$"
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


def test_a_part_that_nobody_asked_for(url: str, plan: Plan, target: Path) -> None:
    """A new download, of which there is no file yet that could be emptied."""
    plan.status, plan.content_range = [206], "bytes 5-9/10"
    good(url, target)
    assert [entry[1] for entry in plan.requests] == [None, None]


def test_a_range_that_nobody_asked_for(url: str, plan: Plan, target: Path) -> None:
    plan.status = [416, 416]
    good(url, target)
    plan.status = [416, 416]
    target.unlink()
    with pytest.raises(DownloadError, match=r"the server answers 416 .* \(after 2 attempts in a"):
        download(url, target, SHA[:8], attempts=2, **QUICK)


def test_corrupt(url: str, plan: Plan, target: Path) -> None:
    plan.body = BODY[:-1] + b"x"
    pattern = rf"sent {len(BODY)} bytes with SHA-256 [0-9a-f]{{64}}; it should begin with {SHA[:8]}"
    with pytest.raises(DownloadError, match=f"{pattern}; the file was emptied$"):
        download(url, target, SHA[:8], **QUICK)
    assert target.read_bytes() == b""
    assert left(target) == ["net.pth"]
    assert len(plan.requests) == 1


def test_a_network_that_goes_away_after_a_wrong_hash(
    url: str, plan: Plan, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of a resumed download was reached, whatever it sent."""
    plan.body, plan.cut = bytes(len(BODY)), [300_000]
    with pytest.raises(DownloadError, match="bytes are kept"):
        download(url, target, SHA[:8], attempts=1, **QUICK)
    plan.body = BODY
    resolve, failures = socket.getaddrinfo, [False, True, False]

    def sometimes(*arguments: Any, **named: Any) -> Any:
        if failures.pop(0):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(*arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", sometimes)
    good(url, target)
    assert not failures


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

    from minidnn.weights.download import _Redirects

    request = urllib.request.Request("https://example.org/a")
    redirect: Any = _Redirects().redirect_request
    arguments: Any = (io.BytesIO(), 302, "Found", {})
    with pytest.raises(DownloadError, match=r"redirects to 'http://example.org/b'; valid is https"):
        redirect(request, *arguments, "http://example.org/b")
    followed = redirect(request, *arguments, "https://example.org/b")
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
    """At once, although further attempts would follow after a minute."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DownloadError, match=r"connection to 127.0.0.1:\d+: Connection refused$"):
        download(f"http://127.0.0.1:{port}/x", target, SHA[:8], backoff=60)


def test_no_name_is_resolved(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*arguments: object, **named: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for scheme in ("http", "https"):
        with pytest.raises(DownloadError, match=r"no connection to weights.example: Temporary"):
            download(f"{scheme}://weights.example/x", target, SHA[:8], backoff=60)


def test_packets_are_dropped(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall that never answers is given up long before a server that is slow to send."""
    monkeypatch.setattr("minidnn.weights.download.CONNECT_TIMEOUT", 0.2)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        queue = [socket.socket() for _ in range(2)]
        for waiting in queue:  # fill the queue of connections, so that no other is answered
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(DownloadError, match=r"no connection to .*: nothing came for 0.2 s$"):
            port = full.getsockname()[1]
            download(f"http://127.0.0.1:{port}/x", target, SHA[:8], timeout=60, backoff=60)
        for waiting in queue:
            waiting.close()


def test_a_slow_server_has_the_whole_timeout(
    url: str, plan: Plan, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minidnn.weights.download.CONNECT_TIMEOUT", 0.05)
    plan.delay = 0.07
    good(url, target)


def test_a_network_that_goes_away_is_waited_for(
    url: str,
    plan: Plan,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once a server was reached, a connection that fails is tried again, and that is said."""
    resolve, failures = socket.getaddrinfo, [False, True, True, False]

    def sometimes(*arguments: Any, **named: Any) -> Any:
        if failures and failures.pop(0):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve(*arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", sometimes)
    plan.cut = [300_000]
    good(url, target)
    assert [record.getMessage().partition("; ")[2] for record in caplog.records] == [
        f"attempt {number} of 5 follows in {pause:g} s"
        for number, pause in [(2, 0.01), (3, 0.02), (4, 0.04)]
    ]
    assert "Temporary failure in name resolution" in caplog.text


def test_a_certificate_that_is_not_valid(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(connection: http.client.HTTPConnection) -> None:
        raise ssl.SSLCertVerificationError("self-signed certificate")

    monkeypatch.setattr(http.client.HTTPConnection, "connect", connect)
    pattern = "weights.example/x: its certificate is not valid: .*self-signed certificate"
    with pytest.raises(DownloadError, match=pattern):
        download("https://weights.example/x", target, SHA[:8], backoff=60)


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
