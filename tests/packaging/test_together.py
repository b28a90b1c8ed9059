"""Tests whose kernels are compiled together run first as far as they ask, then as all others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import only

CONFTEST = """\
import os

from minidnn.backends.cpu.compilers import kernels
from tests.conftest import pytest_runtest_protocol
from tests.cpu import warming

there, compiles = set(), []

def use(name):
    if name not in there:
        kernels.group([name], "", "isa", 1)

def compile_together(sources, isa):
    assert os.environ["MINIDNN_CACHE"] == "cache" and os.environ["MINIDNN_ISPC"] == "ispc"
    there.update(sources)
    compiles.append((isa, sources))

warming.compile_together = compile_together
"""

TESTS = """\
import pytest
from conftest import compiles, use

runs = []

def test_before():
    assert not runs and not compiles

@pytest.fixture(autouse=True)
def where(monkeypatch):
    monkeypatch.setenv("MINIDNN_CACHE", "cache")
    monkeypatch.setenv("MINIDNN_ISPC", "ispc")

@pytest.fixture(scope="module")
def shared():
    runs.append("shared")

@pytest.mark.together(2)
@pytest.mark.parametrize("name", ["a", "b"])
def test_both(name, shared, tmp_path):
    runs.append(f"begins {name}")
    use(name)
    use(f"{name} again")
    runs.append(f"ends {name}")

@pytest.mark.together
def test_one(shared):
    use("c")

def test_after():
    assert compiles == [("isa", ["a", "b", "c"]), ("isa", ["a again", "b again"])]
    asks = ["begins a", "begins b"]
    assert runs == ["shared", *asks, *asks, "begins a", "ends a", "begins b", "ends b"]
"""

WRONG = """\
import pytest
from conftest import use

@pytest.mark.together
def test_it_fails_as_others_do(monkeypatch):
    monkeypatch.setenv("MINIDNN_CACHE", "cache")
    monkeypatch.setenv("MINIDNN_ISPC", "ispc")
    use("d")
    assert False
"""


@pytest.mark.parametrize("workers", only(["1"], ["0", "1"]))
def test_kernels_are_compiled_before_the_first_of_them(
    tmp_path: Path, root: Path, workers: str
) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_wrong.py").write_text(WRONG)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = together\npythonpath = .\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "-n", workers],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert "1 failed, 5 passed" in ended.stdout, ended.stdout + ended.stderr
