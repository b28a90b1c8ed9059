"""Bursts that other processes disturb are noticed and taken again."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from minidnn.bench import measure
from minidnn.measure import LoadWatch
from tests.bench.test_process import engine

# Core 1 belongs to others.
STAT = (
    "cpu  {user} {user} 20 5000 7 1 2 3 0 0\n"
    "cpu0 {user} 10 20 5000 7 1 2 3 0 0\n"
    "cpu1 {user} 0 {user} 0 0 0 0 0 0 0\n"
    "cpu2 1 1 1 1 1 1 1 1 0 0\n"
    "intr 7 {user}\n"
)
OWN = "{pid} (a (strange) name) S 1 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0 1 0 0 0 0\n"


def proc(folder: Path, busy: int, own: int, pid: int) -> None:
    (folder / str(pid)).mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(STAT.format(user=busy))
    (folder / str(pid) / "stat").write_text(OWN.format(pid=pid, user=own, system=own))


def test_the_share_of_others_is_what_is_busy_on_these_cores_without_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minidnn.measure.PROC", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    tick = os.sysconf("SC_CLK_TCK")
    proc(tmp_path, 1000, 50, 7)
    watch = LoadWatch(7)
    now[0] += 10.0
    # Of 20 core seconds the process had 2 * 5, others 4.
    proc(tmp_path, 1000 + 14 * tick, 50 + 5 * tick, 7)
    assert watch.others() == pytest.approx(4 / 20)


def test_where_the_system_does_not_tell_nothing_is_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minidnn.measure.PROC", tmp_path / "missing")
    assert LoadWatch(1).others() == 0.0


def test_a_disturbed_burst_is_taken_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shares = iter([0.5, 0.05] + [0.9, 0.3] + [0.9] * (measure.TRIES - 2))
    monkeypatch.setattr(LoadWatch, "others", lambda self: next(shares))
    monkeypatch.setattr(measure, "PAUSE_SECONDS", 0.0)
    with engine("sleeping", seconds=0.001) as it, caplog.at_level(logging.WARNING):
        found = measure.alternate({"it": it}, 1, 0.01, 0.0)
        assert len(found["it"]) == 1 and not caplog.records
        measure.alternate({"it": it}, 1, 0.01, 0.0)
    (record,) = caplog.records
    assert record.getMessage() == "engine 'it': other processes had 30 % of the cores"
