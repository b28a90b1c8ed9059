"""Finding ISPC and the C compiler, and what is said when they are missing or broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from minidnn.backends.cpu.compilers import toolchain
from minidnn.backends.cpu.compilers.toolchain import (
    find_cc,
    find_ispc,
    toolchain_status,
    why_unusable,
)
from minidnn.backends.cpu.isa import AVX2, AVX512, Isa, usable_isa
from minidnn.errors import DeviceError

from .conftest import MakeFake


def test_real_ispc_tells_version_and_targets(real_ispc: str) -> None:
    found = find_ispc()
    assert found.path == real_ispc and found.source == "MINIDNN_ISPC"
    assert found.version >= toolchain.OLDEST_ISPC
    for isa in (AVX512, AVX2):
        found.require(isa)
    assert why_unusable() is None


def test_missing_everywhere(monkeypatch: pytest.MonkeyPatch, cold_cache: Path) -> None:
    monkeypatch.delenv("MINIDNN_ISPC")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(DeviceError) as caught:
        find_ispc()
    message = str(caught.value)
    assert "MINIDNN_ISPC is not set, there is no ispc in PATH" in message
    assert str(cold_cache / "ispc-toolchain") in message
    assert "minidnn doctor --install-ispc" in message


def test_variable_names_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINIDNN_ISPC", "/nonexistent/ispc")
    with pytest.raises(DeviceError, match=r"MINIDNN_ISPC=/nonexistent/ispc does not exist"):
        find_ispc()
    (tmp_path / "plain").write_text("")
    monkeypatch.setenv("MINIDNN_ISPC", str(tmp_path / "plain"))
    with pytest.raises(DeviceError, match="plain is not executable"):
        find_ispc()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'other 1.0'", "is not ISPC: 'ispc --version' printed 'other 1.0'"),
        ("echo broken library >&2; exit 127", "failed with exit status 127, printing 'broken lib"),
        ("kill -SEGV $$", "was killed by signal 11 (SIGSEGV)"),
        ("sleep 1040.5", "took longer than 0.5 s and was killed"),
    ],
)
def test_broken_program(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold_cache: Path
) -> None:
    monkeypatch.setattr(toolchain, "PROBE_SECONDS", 0.5)
    program = tmp_path / "ispc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("MINIDNN_ISPC", str(program))
    with pytest.raises(DeviceError) as caught:
        find_ispc()
    assert message in str(caught.value) and str(program) in str(caught.value)


def test_not_a_program_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold_cache: Path
) -> None:
    program = tmp_path / "ispc"
    program.write_bytes(b"\x7fELF garbage")
    program.chmod(0o755)
    monkeypatch.setenv("MINIDNN_ISPC", str(program))
    with pytest.raises(DeviceError, match=r"ISPC .*ispc \(from MINIDNN_ISPC\)"):
        find_ispc()


def test_old_version(make_fake: MakeFake, cold_cache: Path) -> None:
    make_fake("exit 1", version="1.9.2")
    with pytest.raises(DeviceError, match=r"is version 1\.9\.2; minidnn needs 1\.24 or newer"):
        find_ispc()


def test_missing_target(make_fake: MakeFake, cold_cache: Path) -> None:
    make_fake("exit 1")
    other = Isa("neon", "neon-i32x4", 4, 32, ())
    with pytest.raises(DeviceError, match=r"has no target neon-i32x4; it has avx2-i32x8, avx512"):
        find_ispc().require(other)


def test_path_and_private_copy(
    make_fake: MakeFake, cold_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = cold_cache / "ispc-toolchain" / "1" / "ispc"
    private.parent.mkdir(parents=True)
    private.write_bytes(make_fake("exit 1", version="1.27.0", name="other").read_bytes())
    private.chmod(0o755)
    (cold_cache / "ispc-toolchain" / "current").symlink_to("1")
    monkeypatch.delenv("MINIDNN_ISPC")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if toolchain.shutil.which("ispc"):
        pytest.skip("this system has an ispc in /usr/bin")
    assert find_ispc().source == "the cache folder" and find_ispc().version == (1, 27, 0)
    in_path = make_fake("exit 1", version="1.26.1", use=False)
    monkeypatch.setenv("PATH", f"{in_path.parent}:/usr/bin:/bin")
    assert find_ispc().source == "PATH" and find_ispc().version == (1, 26, 1)
    make_fake("exit 1", version="1.9.0", use=False)
    assert find_ispc().source == "the cache folder"


def test_answers_are_remembered_across_processes(
    make_fake: MakeFake, cold_cache: Path, tmp_path: Path
) -> None:
    path = make_fake("exit 1")
    log = tmp_path / "log"
    path.write_text(path.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\necho x >> {log}\n"))
    find_ispc()
    assert log.read_text().count("x") == 2  # --version and --help
    toolchain._remembered.clear()  # as in a new process
    find_ispc()
    assert log.read_text().count("x") == 2
    path.write_text(path.read_text() + "\n# another file\n")
    find_ispc()
    assert log.read_text().count("x") == 4


def test_c_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_cc().banner
    monkeypatch.setenv("CC", "/nonexistent/cc -m64")
    with pytest.raises(DeviceError, match="CC=/nonexistent/cc -m64: '/nonexistent/cc' is not a"):
        find_cc()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="no C compiler was found"):
        find_cc()


def test_status_says_both(monkeypatch: pytest.MonkeyPatch, real_ispc: str) -> None:
    status = toolchain_status()
    assert status.usable and not status.problems
    first, second = status.lines()
    assert first.startswith("ispc 1.") and real_ispc in first and second.startswith("C compiler: ")
    monkeypatch.setenv("MINIDNN_ISPC", "/nonexistent/ispc")
    monkeypatch.setenv("CC", "/nonexistent/cc")
    status = toolchain_status()
    assert not status.usable and len(status.problems) == 2
    assert all("/nonexistent/" in line for line in status.lines())
    assert "does not exist" in (why_unusable() or "")


def test_unknown_isa() -> None:
    with pytest.raises(DeviceError, match="isa='sse'; valid are 'avx512', 'avx2'"):
        usable_isa("sse")
