"""Locks that others cannot hold, and temporary folders that no killed process leaves for ever."""

from __future__ import annotations

import logging
import os
import platform
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from minidnn import cache
from minidnn.errors import MiniDNNError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")

ROOT = Path(__file__).parents[2]


def run(script: str) -> subprocess.Popen[str]:
    """A process that has printed its first line."""
    command = [sys.executable, "-c", script]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
    return process


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


HOLDER = """
import sys
from minidnn import cache
with cache.one_at_a_time("build", "builds", 5):
    print("holds it", flush=True)
    sys.stdin.readline()
"""


def test_who_is_waited_for_is_said_and_not_for_ever(
    cache_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    holder = run(HOLDER)
    assert line_of(holder) == "holds it"
    begin = time.monotonic()
    with cache.one_at_a_time("build", "builds", 1.3) as alone:
        assert not alone and 1.3 <= time.monotonic() - begin < 10
    who = f"process {holder.pid} on {platform.node()}"
    lock = cache_root / "locks" / "build.lock"
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for {who}, which builds and holds {lock} (for at most 1.3 s)",
        f"{who} still builds after 1 s and holds {lock}; going on beside it",
    ]
    with cache.one_at_a_time("other", "builds", 0.0) as alone:
        assert alone
    holder.communicate("\n")
    with cache.one_at_a_time("build", "builds", 0.0) as alone:
        assert alone


def test_whoever_gets_on_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    holder = run(HOLDER)
    assert line_of(holder) == "holds it"
    threading.Timer(1.4, lambda: holder.communicate("\n")).start()
    said: list[str] = []
    alive = iter(range(10_000))
    with cache.one_at_a_time(
        "build", "builds", 0.2, wait=said.append, alive=lambda: next(alive)
    ) as alone:
        assert alone
    assert len(said) == 1 and not caplog.records
    holder.wait()


def test_a_child_of_a_fork_does_not_keep_the_lock_of_a_dead_parent() -> None:
    script = """
import os, sys
from minidnn import cache
with cache.one_at_a_time("build", "builds", 5), cache.temporary_folder() as folder:
    if os.fork():
        print(folder, flush=True)
        os.kill(os.getpid(), 9)
    sys.stdin.readline()  # lives on
    os._exit(0)
"""
    process = run(script)
    folder = Path(line_of(process))
    process.wait()
    with cache.one_at_a_time("build", "builds", 10.0) as alone:  # the child has to get going
        assert alone
    with cache.temporary_folder():
        assert not folder.exists()
    process.communicate("\n")


def test_others_cannot_open_a_lock(cache_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = os.umask(0)
    try:
        (cache_root / "locks").mkdir(mode=0o755, parents=True)
        cache_root.chmod(0o755)
        with cache.one_at_a_time("build", "builds", 0.0):
            lock = cache_root / "locks" / "build.lock"
            assert stat.S_IMODE(lock.parent.stat().st_mode) == 0o700
            assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    (cache_root / "locks").chmod(0o777)
    holder = run(HOLDER)  # where others could have put a lock, none is taken
    with caplog.at_level(logging.INFO), cache.one_at_a_time("build", "builds", 0.0) as alone:
        assert alone
    assert "locks can be written by others" in caplog.text
    holder.communicate("\n")


KILLED = """
import os, sys, tempfile, warnings
warnings.simplefilter("ignore")
from minidnn import cache
tempfile.tempdir = sys.argv[1] if len(sys.argv) > 1 else None
os.environ["MINIDNN_CACHE"] = "/dev/null/cache"
with cache.temporary_folder() as folder:
    (folder / "file").write_text("x")
    print(folder, cache.CacheStore("unit").put("a" * 64, b"x").parents[2], flush=True)
    sys.stdin.readline()
"""


def test_what_a_killed_process_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    killed, living = run(KILLED), run(KILLED)
    left = [Path(name) for name in line_of(killed).split()]
    used = [Path(name) for name in line_of(living).split()]
    (tmp_path / "minidnn-work-of-mine").write_text("a file")
    killed.kill()
    killed.communicate()
    assert all(folder.parent == tmp_path and folder.is_dir() for folder in left + used)
    with cache.temporary_folder() as folder:
        assert not any(folder.exists() for folder in left)
        assert all(folder.is_dir() for folder in [*used, folder])
    living.communicate("\n")
    assert [path.name for path in tmp_path.glob("minidnn-*")] == ["minidnn-work-of-mine"]


def test_many_make_and_sweep_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = """
from minidnn import cache
for _ in range(60):
    with cache.temporary_folder() as folder:
        (folder / "file").write_text("x")
        assert (folder / "file").read_text() == "x"
print("good")
"""
    workers = [run(script) for _ in range(4)]
    assert [worker.communicate()[0] for worker in workers] == ["good\n"] * 4
    assert not list(tmp_path.glob("minidnn-*"))


def test_nothing_is_compiled_where_others_could_exchange_it(
    cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as outer:
        Path(outer).chmod(0o755)
        shared = Path(os.path.realpath(outer)) / "shared"
        shared.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(shared))
        check_where_is_compiled(shared, cache_root)


def check_where_is_compiled(shared: Path, cache_root: Path) -> None:
    shared.chmod(0o1777)
    with cache.temporary_folder() as folder:
        assert folder.parent == shared
    shared.chmod(0o777)  # without the sticky bit anybody renames anything
    with cache.temporary_folder() as folder:
        assert folder.parent == cache_root / "temporary"
    cache_root.chmod(0o777)
    with (
        pytest.raises(MiniDNNError, match=rf"{shared} can be written.*; nor .* {cache_root} can"),
        cache.temporary_folder(),
    ):
        pass
