"""Compilation on caches that are full, read-only or damaged: real file systems, real damage.

Folders that are full or read-only are mounted in a namespace of the child process, so that what is
tested is the kernel's own refusal, in the middle of a file as well as before one.
"""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from .conftest import run_python

COMPILE = """
    import warnings
    warnings.simplefilter("always")
    from minidnn.errors import CompileError, MiniDNNError
    from tests.cpu.test_backend_faults import compiled, works
    with warnings.catch_warnings(record=True) as caught:
        for _ in range(2):
            assert works(compiled())
    for text in sorted({str(warning.message) for warning in caught}):
        print(text)
    print("right")
    """


@cache
def why_no_mounts() -> str | None:
    """Return why a child cannot mount folders of its own here, or None when it can."""
    if shutil.which("unshare") is None:
        return "there is no unshare in PATH"
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"no mounts in a namespace: {done.stderr.strip()}" if done.returncode else None


def run_with(mounts: str, code: str, **environment: str) -> tuple[list[str], str, int]:
    """Runs ``code`` where the shell commands ``mounts`` hold; lines printed, errors, status."""
    if (reason := why_no_mounts()) is not None:
        pytest.skip(reason)
    start = """
        import os, sys
        mounts, code = sys.argv[1:]
        script = f'set -e; {mounts}; exec "$0" -c "$1"'
        os.execvp("unshare", ["unshare", "-rm", "sh", "-c", script, sys.executable, code])
        """
    child = run_python(start, mounts, textwrap.dedent(code), **environment)
    out, err = child.communicate(timeout=60)
    return out.splitlines(), err, child.returncode


full = pytest.mark.full


@pytest.fixture(scope="module")
def filled(real_ispc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with all that the network needs; not to be written to."""
    folder = tmp_path_factory.mktemp("filled") / "cache"
    child = run_python(COMPILE, MINIDNN_CACHE=str(folder), MINIDNN_ISPC=real_ispc)
    out, err = child.communicate(timeout=60)
    assert out == "right\n", err
    return folder


@pytest.fixture
def warm(filled: Path, cold_cache: Path) -> Path:
    """This test's own copy of that cache, in use."""
    return Path(shutil.copytree(filled, cold_cache))


@pytest.mark.parametrize("room", ["24k", *(pytest.param(k, marks=full) for k in ("4k", "64k"))])
def test_full_cache(room: str, cold_cache: Path, tmp_path: Path) -> None:
    """A file system without room, with room for the first entries only, and for half a file."""
    cold_cache.mkdir()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    mounts = f"mount -t tmpfs -o mode=700,size={room} tmpfs {cold_cache}"
    code = (
        COMPILE
        + f"""
    from pathlib import Path
    print(len([p for p in Path({str(cold_cache)!r}).rglob(".work-*")]), "unfinished files")
    """
    )
    lines, err, status = run_with(mounts, code, TMPDIR=str(temporary))
    assert status == 0, err
    assert lines[1:] == ["right", "0 unfinished files"]
    assert f"the cache folder {cold_cache} cannot be written: [Errno 28] No space left" in lines[0]
    assert "set MINIDNN_CACHE to a folder that can be written" in lines[0]
    assert not list(temporary.iterdir())


def test_full_temporary_folder(cold_cache: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    code = """
        from tests.cpu.test_backend_faults import compiled
        from minidnn.errors import CompileError
        try:
            compiled()
        except CompileError as error:
            print(error)
        """
    mounts = f"mount -t tmpfs -o size=8k tmpfs {temporary}"
    lines, err, status = run_with(mounts, code, TMPDIR=str(temporary))
    assert status == 0, err
    assert "No space left on device" in "\n".join(lines)
    assert f"{temporary} (set TMPDIR to another)" in lines[-1], lines


def test_read_only_cache(cold_cache: Path) -> None:
    """Empty: a temporary folder takes its place."""
    cold_cache.mkdir()
    lines, err, status = run_with(f"mount -t tmpfs -o mode=700,ro tmpfs {cold_cache}", COMPILE)
    assert status == 0, err
    assert "cannot be written: [Errno 30] Read-only file system" in lines[0]
    assert lines[1:] == ["right"]


def test_read_only_cache_that_has_all(warm: Path) -> None:
    """One that an administrator filled: nothing is compiled and nothing to be said."""
    mounts = f"mount --bind {warm} {warm}; mount -o remount,ro,bind {warm}"
    lines, err, status = run_with(mounts, COMPILE, MINIDNN_NO_COMPILE="1")
    assert (lines, status) == (["right"], 0), err


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _replace_by_a_folder(path: Path) -> None:
    path.unlink()
    (path / "below").mkdir(parents=True)


@pytest.mark.parametrize(
    "damage",
    [
        _flip_a_bit,
        pytest.param(_replace_by_a_folder, marks=full),
        pytest.param(_cut, marks=full),
        pytest.param(_empty, marks=full),
    ],
)
def test_damaged_cache(damage: Callable[[Path], None], warm: Path) -> None:
    """Every file of the cache, the runner included: said so, built again, and then at rest."""
    files = sorted(p for p in warm.glob("*/*/*") if p.is_file())
    kinds = {path.parent.parent.name for path in files}
    assert kinds >= {"ispc", "ispc_index", "runner", "toolchain"}
    for path in files:
        damage(path)
    out, err = run_python(COMPILE).communicate(timeout=60)
    *said, last = out.splitlines()
    assert last == "right", err
    # What nothing asks for any more is not looked at; the index is what is asked for first.
    for kind in kinds - {"ispc", "machine", "compilers"}:
        assert any(f"/{kind}/" in text and "is damaged" in text for text in said), (kind, said)
    if damage is not _replace_by_a_folder:  # a folder in the way is not minidnn's to remove
        child = run_python(COMPILE, MINIDNN_NO_COMPILE="1")
        assert child.communicate(timeout=60) == ("right\n", "")


def test_index_without_its_library(warm: Path) -> None:
    shutil.rmtree(warm / "ispc")
    assert run_python(COMPILE).communicate(timeout=60) == ("right\n", "")
