"""``minidnn batch`` on Ray: workers and whole runs that are killed, and what is in the output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.batch.pictures import Pictures, make_pictures

pytest.importorskip("ray", reason="Ray is not installed (minidnn[batch])")


def start(pictures: Pictures, output: Path, *more: str) -> subprocess.Popen[str]:
    command = [
        *(sys.executable, "-m", "minidnn", "batch", "digits", "--device", "reference"),
        *("--input", f"{pictures.root}/**", "--output", str(output), "--format", "jsonl"),
        *more,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def processes_of(driver: int) -> dict[int, bytes]:
    """The processes below a driver, and what they are called."""
    parents, titles = {}, {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                stat = (each / "stat").read_text().rpartition(")")[2].split()
                titles[int(each.name)] = (each / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            parents[int(each.name)] = int(stat[1])

    def is_below(process: int) -> bool:
        while process > 1 and process != driver:
            process = parents.get(process, 0)
        return process == driver

    return {each: title for each, title in titles.items() if is_below(each)}


def workers_of(driver: int) -> list[int]:
    """The processes of Ray below a driver that compute parts."""
    titles = processes_of(driver)
    return [each for each, title in titles.items() if title.startswith(b"ray::MapWorker")]


def is_on_loopback(processes: list[int]) -> bool:
    """Whether all TCP ports on which processes listen are of the loopback."""
    sockets = set()
    for process in processes:
        with suppress(OSError):  # it has ended
            sockets |= {os.readlink(each) for each in Path(f"/proc/{process}/fd").iterdir()}
    addresses = [
        fields[1].partition(":")[0]
        for name in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/net/{name}").read_text().splitlines()[1:])
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets
    ]
    loopback = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
    return bool(addresses) and set(addresses) <= set(loopback)


def kill_a_worker(driver: subprocess.Popen[str], output: Path, parts: int) -> None:
    """Kills one once so many parts are there, while it computes another."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and driver.poll() is None:
        complete = len(list(output.glob("part-*")))
        begun = list(output.glob(".part-*.attempts"))
        if complete >= parts and begun and (workers := workers_of(driver.pid)):
            os.kill(workers[0], signal.SIGKILL)
            return
        time.sleep(0.002)
    pytest.fail(f"no worker to kill: {driver.poll()}, {sorted(output.iterdir())}")


def check(pictures: Pictures, output: Path) -> None:
    """Every good picture is there once, and every bad one is named once."""
    rows = Counter(
        json.loads(line)["file"]
        for part in output.glob("part-*.jsonl")
        for line in part.read_text(encoding="utf-8").splitlines()
    )
    assert rows == Counter(pictures.good)
    lines = (output / "bad.jsonl").read_text(encoding="utf-8").splitlines()
    assert Counter(json.loads(line)["file"] for line in lines) == Counter(pictures.bad)
    left = {each.name for each in output.iterdir()} - {
        "manifest.jsonl",
        "inputs.jsonl",
        "bad.jsonl",
    }
    assert {name for name in left if not name.startswith("part-")} == {".lock"}


def run_with_kills(pictures: Pictures, output: Path, part: int, at: tuple[int, int]) -> None:
    running = start(pictures, output, "--part", str(part))
    for parts in at:
        kill_a_worker(running, output, parts)
        assert is_on_loopback(list(processes_of(running.pid)))
    out, err = running.communicate(timeout=900)
    assert running.returncode == 1, err
    total = len(pictures.good) + len(pictures.bad)
    assert out.startswith(f"{len(pictures.good):,} of {total:,} pictures predicted; {total:,} in ")
    assert f"{len(pictures.bad):,} could not be read: {output}/bad.jsonl" in out
    assert err.startswith(f"minidnn batch: {total:,} files\n")
    check(pictures, output)


@pytest.mark.early
def test_workers_killed_twice_lose_nothing(tmp_path: Path) -> None:
    pictures = make_pictures(tmp_path / "pictures", 240, 5)
    run_with_kills(pictures, tmp_path / "out", 40, (1, 3))


@pytest.mark.full
def test_twenty_thousand_pictures(tmp_path: Path) -> None:
    pictures = make_pictures(tmp_path / "pictures", 20_000, 200)
    run_with_kills(pictures, tmp_path / "out", 500, (5, 20))


@pytest.mark.full
def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    """The driver and all that it started are gone at once, as when a machine loses power."""
    pictures = make_pictures(tmp_path / "pictures", 2_000, 20)
    output = tmp_path / "out"
    running = start(pictures, output, "--part", "50")
    while len(list(output.glob("part-*"))) < 4:
        assert running.poll() is None
        time.sleep(0.01)
    workers = workers_of(running.pid)
    for process in (running.pid, *workers):
        os.kill(process, signal.SIGKILL)
    running.communicate()
    again = start(pictures, output, "--part", "50")
    out, err = again.communicate(timeout=600)
    assert again.returncode == 1, err
    assert "parts are there; going on" in err
    assert not out.startswith("1,980 of 2,000 pictures predicted; 2,000 in")
    check(pictures, output)
