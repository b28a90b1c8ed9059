"""How much memory a process may use: the machine's, control groups', and its address space."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from minidnn.runtime import cores
from minidnn.runtime.cores import granted_memory, usable_memory

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "0::/\n", MACHINE),
        ({"memory.max": "max"}, "0::/\n", MACHINE),
        ({"memory.max": "1000000"}, "0::/\n", 1_000_000),
        ({"memory.max": str(2**62)}, "0::/\n", MACHINE),
        ({"a/memory.max": "3000000", "a/b/memory.max": "max"}, "0::/a/b\n", 3_000_000),
        ({"memory/c/memory.limit_in_bytes": "5000"}, "4:cpu:/x\n2:memory:/c\n", 5000),
        ({"memory.max": "broken"}, None, MACHINE),
    ],
)
def test_control_groups(
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
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    granted_memory.cache_clear()
    try:
        assert usable_memory() == expected
    finally:
        granted_memory.cache_clear()


def test_a_limit_on_the_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + (64 << 20), -1))
    assert 32 << 20 < usable_memory() <= 64 << 20
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, -1))
    assert usable_memory() == 0
