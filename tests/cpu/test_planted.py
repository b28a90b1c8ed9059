"""A library that somebody else puts where this user's process looks for its own never runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from minidnn.backends.cpu.compilers.toolchain import find_cc

from .conftest import run_python

SOMEBODY = 12345
PLANTED = """
#include <stdio.h>
__attribute__((constructor)) static void run(void) {
  puts("the planted library ran");
  fflush(stdout);
}
"""
RUN = """
    import warnings
    from minidnn.backends.cpu.execution.native import runner
    from minidnn.errors import CompileError
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            runner()
            print("right")
        except CompileError as error:
            print(type(error).__name__, error)
    print(*sorted({str(warning.message) for warning in caught}), sep="\\n")
    """


@pytest.fixture(scope="module")
def filled(real_ispc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled") / "cache"
    child = run_python(RUN, MINIDNN_CACHE=str(folder), MINIDNN_ISPC=real_ispc)
    assert child.communicate(timeout=60)[0].strip() == "right"
    return folder


@pytest.fixture
def planted(filled: Path, cold_cache: Path, tmp_path: Path) -> Path:
    """A full cache in which each library is another one, of the right name and checksum."""
    (tmp_path / "planted.c").write_text(PLANTED)
    command = [*find_cc().argv, "-shared", "-fPIC", "-o", "planted.so", "planted.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    content = (tmp_path / "planted.so").read_bytes()
    check = hashlib.sha256(content).hexdigest()[:32]
    shutil.copytree(filled, cold_cache)
    for path in cold_cache.rglob("*.so"):
        key, _, label = path.name.split("-", 2)
        path.with_name(f"{key}-{check}-{label}").write_bytes(content)
        path.unlink()
    return cold_cache


def outcome(**environment: str) -> str:
    return run_python(RUN, **environment).communicate(timeout=60)[0]


def test_it_would_run_if_it_were_ones_own(planted: Path) -> None:
    """The attack works (and lacks the runner's functions), so that what follows shows something."""
    assert outcome() == "the planted library ran\n"


def test_of_a_folder_that_others_write_to(planted: Path) -> None:
    planted.chmod(0o777)
    out = outcome()
    assert out.startswith("right\n") and "the planted" not in out
    assert f"{planted} can be written by others (its mode is 0777)" in out
    out = outcome(MINIDNN_NO_COMPILE="1")
    assert out.startswith("CompileError the cache") and "planted library" not in out
    assert f"{planted} can be written by others" in out.splitlines()[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to somebody else")
def test_of_a_file_of_somebody_elses(planted: Path) -> None:
    for path in planted.rglob("*.so"):
        os.chown(path, SOMEBODY, SOMEBODY)
    out = outcome()
    assert out.startswith("right\n") and "the planted" not in out
    assert "belongs to user 12345" in out
    assert outcome() == "right\n\n"  # built again, and then at rest


def test_the_private_copy_of_ispc(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minidnn.backends.cpu.compilers.toolchain import find_ispc
    from minidnn.errors import DeviceError

    tree = cold_cache / "ispc-toolchain" / "1.26.0"
    program = tree / "ispc"
    (tree / "usr" / "lib").mkdir(parents=True)
    library = tree / "usr" / "lib" / "libc.so.6"
    library.write_text("")
    program.write_text("#!/bin/sh\necho 'ISPC, 1.26.0'\n")
    program.chmod(0o755)
    (tree.parent / "current").symlink_to("1.26.0")
    monkeypatch.delenv("MINIDNN_ISPC")
    monkeypatch.setenv("PATH", "/nowhere")
    for path in (cold_cache, tree.parent, tree, program, library.parent, library):
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode | 0o002)
        with pytest.raises(DeviceError, match=f"ISPC is not run: {path} can be written by others"):
            find_ispc()
        path.chmod(mode)
    assert find_ispc().version == (1, 26, 0)
