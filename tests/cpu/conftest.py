"""Shared by the tests of the CPU engine's native side: ISPC, caches, fake compilers."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minidnn.backends.cpu import isa as processor
from minidnn.backends.cpu.compilers import toolchain
from minidnn.backends.cpu.compilers.kernels import Unit, compile_units, prelude
from minidnn.backends.cpu.compilers.library import SharedObject
from minidnn.backends.cpu.isa import AVX2, ISAS, Isa, usable_isas
from minidnn.errors import DeviceError

ROOT = Path(__file__).resolve().parents[2]

FAKE_HEAD = """\
#!/bin/sh
case "$1" in
--version) echo 'Intel(r) Implicit SPMD Program Compiler (Intel(r) ISPC), {version} (build)'; exit;;
--help) echo '[--target=<t>] Select <t>={{avx2-i32x8, avx512skx-x16}}'; exit;;
esac
"""

OURS = "MINIDNN_TESTS_OF_PROCESS"
"""By this variable processes that tests have started are known, whoever their parent is by now."""

MakeFake = Callable[..., Path]
Build = Callable[..., SharedObject]


@pytest.fixture(scope="session")
def real_ispc() -> str:
    """The path of this machine's ISPC; skips where there is none or no C compiler."""
    try:
        found = toolchain.find_ispc()
        toolchain.find_cc()
    except DeviceError as error:
        pytest.skip(str(error))
    return found.path


@pytest.fixture(autouse=True)
def own_cache(real_ispc: str, warm_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One cache for the session, so that the runner and common kernels are compiled once."""
    monkeypatch.setenv("MINIDNN_CACHE", str(warm_cache))
    monkeypatch.setenv("MINIDNN_ISPC", real_ispc)
    monkeypatch.delenv("MINIDNN_NO_COMPILE", raising=False)
    monkeypatch.setenv(OURS, str(os.getpid()))
    yield


@pytest.fixture
def cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test."""
    folder = tmp_path / "cold"
    monkeypatch.setenv("MINIDNN_CACHE", str(folder))
    return folder


@pytest.fixture
def make_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeFake:
    """Writes a fake ispc that answers ``--version`` and then runs ``body``; uses it by default."""

    def make(body: str, version: str = "1.26.0", name: str = "ispc", use: bool = True) -> Path:
        path = tmp_path / "fake" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(FAKE_HEAD.format(version=version) + textwrap.dedent(body))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        if use:
            monkeypatch.setenv("MINIDNN_ISPC", str(path))
        return path

    return make


@pytest.fixture(params=list(ISAS))
def isa(request: pytest.FixtureRequest) -> Isa:
    """Each ISA that this processor executes."""
    chosen = ISAS[request.param]
    if chosen not in usable_isas():
        pytest.skip(f"this processor does not execute {chosen.name}")
    return chosen


@pytest.fixture
def build() -> Build:
    """Compiles the text of kernels (prelude added) and returns the library."""

    def compiled(text: str, isa: Isa = AVX2, name: str = "test") -> SharedObject:
        return compile_units([Unit(name, prelude(isa) + textwrap.dedent(text), isa)])[0]

    return compiled


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a Python process on ``code`` with this process's environment."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def processes_with(marker: str) -> list[str]:
    """Command lines that contain ``marker`` of running processes that these tests started."""
    found = []
    ours = f"{OURS}={os.getpid()}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker in line and ours in environment:
            found.append(line)
    return found


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Polls until ``condition`` holds; False when it did not in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


@pytest.fixture(params=["tiles", "vectors"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How the processor multiplies bfloat16."""
    yield from multiplying(request.param, processor.AMX_BF16, monkeypatch)


def multiplying(
    kind: str, with_tiles: processor.Isa, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Has the processor multiply by tiles, or by vectors alone; skips where it has no tiles."""
    if kind == "tiles" and not processor.is_usable(with_tiles):
        pytest.skip("this processor has no tiles, or the system denies them")
    with monkeypatch.context() as patch:
        if kind == "vectors":
            patch.setattr(processor, "_tiles_permitted", lambda: False)
        yield kind
