"""Downloads into the cache, shared by processes; and the progress bar."""

from __future__ import annotations

import hashlib
import io
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from minidnn import cache
from minidnn.errors import DownloadError
from minidnn.weights import load, load_weights
from minidnn.weights.download import ByteProgress, download, fetch
from tests.weights.server import BODY, QUICK, SHA, Plan

ROOT = Path(__file__).parents[2]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "net.pth"


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
    mine = load.KnownWeights(
        "tiny", "IMAGENET1K_V1", "Tiny_Weights", url.replace(SHA[:8], sha[:8]), 256, 224, 0.1
    )
    monkeypatch.setattr(load, "KNOWN_WEIGHTS", (mine,))
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
    download(url, target, SHA[:8], **QUICK)
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal(
    url: str, plan: Plan, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    download(url, target, SHA[:8], **QUICK)
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
