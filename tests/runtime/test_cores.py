"""How many cores a process may use: its mask, and quotas of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from minidnn.runtime import cores


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "0::/\n", 64),
        ({"cpu.max": "max 100000"}, "0::/\n", 64),
        ({"cpu.max": "150000 100000"}, "0::/\n", 2),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 4),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "10000 100000"}, "0::/a/b\n", 1),
        (
            {"cpu/c/cpu.cfs_quota_us": "300000", "cpu/c/cpu.cfs_period_us": "100000"},
            "4:cpu,cpuacct:/c\n2:memory:/x\n",
            3,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/\n", 64),
        ({"cpu.max": "broken"}, None, 64),
    ],
)
def test_cores(
    files: dict[str, str],
    own: str | None,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in files.items():
        (tmp_path / "group" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "group" / name).write_text(text + "\n")
    if own is not None:
        (tmp_path / "self").write_text(own)
    monkeypatch.setattr(cores, "CGROUP", tmp_path / "group")
    monkeypatch.setattr(cores, "SELF", tmp_path / "self")
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(64)))
    assert cores.usable_cores() == expected
