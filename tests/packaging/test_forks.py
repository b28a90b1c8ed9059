"""Workers that are forked run each test once, apart from each other, and say what became of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CONFTEST = """\
from tests.conftest import *
"""

SHARED = """\
import os, pytest

made = []

@pytest.fixture(scope="module")
def shared():
    made.append(os.getpid())
    yield made
    print("torn down")

@pytest.mark.parametrize("i", range(3))
def test_together(i, shared, tmp_path, pytestconfig):
    assert len(shared) == 1, "in one process, which made it once"
    assert tmp_path.parent.name == f"popen-{pytestconfig.workerinput['workerid']}"
    assert pytestconfig.workerinput["workercount"] == 2
    print("said", i)
"""

WRONG = """\
import pytest

def test_wrong():
    print("before it fails")
    assert 1 == 2

@pytest.fixture(scope="module")
def broken():
    yield
    raise OSError("torn down wrongly")

def test_last(broken):
    pass
"""

LONG = """\
import pytest, time

@pytest.mark.parametrize("part", range(4), ids="part-{}".format)
def test_long(part):
    time.sleep(0.5)
"""


def run(folder: Path, root: Path, *arguments: str, **files: str) -> tuple[int, str]:
    """What becomes of files of tests."""
    folder.joinpath("conftest.py").write_text(CONFTEST, encoding="utf-8")
    markers = "[pytest]\nmarkers = alone\n early\n gpu\n together\n sampled\n"
    folder.joinpath("pytest.ini").write_text(markers, encoding="utf-8")
    for name, text in files.items():
        folder.joinpath(f"test_{name}.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "--forks", "2", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_they_share_the_work(tmp_path: Path, root: Path) -> None:
    status, said = run(tmp_path, root, shared=SHARED, long=LONG)
    assert status == 0 and "7 passed" in said, said
    assert "said" not in said
    ran = re.findall(r"\[gw(\d)\].* PASSED test_(\w+)\.py::", said)
    assert {worker for worker, file in ran if file == "long"} == {"0", "1"}
    assert len({worker for worker, file in ran if file == "shared"}) == 1


def test_what_fails_is_told_with_what_it_printed(tmp_path: Path, root: Path) -> None:
    status, said = run(tmp_path, root, shared=SHARED, wrong=WRONG)
    assert status == 1 and "1 failed, 4 passed, 1 error" in said, said
    assert "before it fails" in said and "assert 1 == 2" in said and "torn down wrongly" in said
    status, said = run(tmp_path, root, "-x", shared=LONG, wrong=WRONG)
    assert status == 1 and "stopping after 1 failures" in said, said


def test_a_worker_that_is_killed_ends_the_run(tmp_path: Path, root: Path) -> None:
    """A process that it has started lives on, and holds what it held."""
    killed = "import os, time\n\ndef test_killed():\n    os.fork() and os.kill(os.getpid(), 9)\n"
    killed += "    time.sleep(8)\n    os._exit(0)\n"
    status, said = run(tmp_path, root, killed=killed, long=LONG)
    assert status == 3 and "ended with -9 in test_killed.py::test_killed" in said, said


def test_what_cannot_be_collected_is_told(tmp_path: Path, root: Path) -> None:
    status, said = run(tmp_path, root, broken="import no_such_module\n", long=LONG)
    assert status == 2 and "No module named 'no_such_module'" in said
    assert "1 error during collection" in said
