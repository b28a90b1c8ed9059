"""What workers are given: files as a whole, parts by themselves, the longest first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import why_no_gpu
from tests.schedule import MANY_TESTS, put_in_order, spread, unit_of


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/a/test_x.py::test_one", "tests/a/test_x.py"),
        ("tests/a/test_x.py::test_one[apart-1]", "tests/a/test_x.py"),
        ("tests/a/test_x.py::test_one[part-1-avx2]", "tests/a/test_x.py"),
        ("tests/a/test_x.py::test_one[part-1]", "tests/a/test_x.py::test_one[part-1]"),
        ("tests/a/test_x.py::test_one[avx2-part-12]", "tests/a/test_x.py::test_one[avx2-part-12]"),
    ],
)
def test_units(nodeid: str, unit: str) -> None:
    assert unit_of(nodeid) == unit


CONFTEST = """\
from tests.conftest import (
    pytest_collection_modifyitems,
    pytest_terminal_summary,
    pytest_testnodedown,
    pytest_xdist_make_scheduler,
)
"""

MANY = """\
import pytest

@pytest.mark.parametrize("i", range(6))
def test_many(i):
    pass

@pytest.mark.gpu
def test_gpu():
    pass
"""

LONG = """\
import pytest, time

@pytest.mark.early
@pytest.mark.parametrize("part", range(4), ids="part-{}".format)
def test_long(part):
    time.sleep(0.3)

def test_short():
    pass
"""


class Item:
    """What is known of a test when the order is made."""

    def __init__(self, nodeid: str, *markers: str) -> None:
        self.nodeid, self.markers = nodeid, markers

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None


def test_those_that_run_alone_come_between_short_ones() -> None:
    sizes = {"few": 3, "many": MANY_TESTS - 1, "more": MANY_TESTS + 1}
    items: list[Any] = [Item(f"{n}.py::test_{i}") for n, size in sizes.items() for i in range(size)]
    items += [Item("one.py::test_0"), Item("one.py::test_1", "alone")]
    items += [Item("long.py::test_0", "early")]
    put_in_order(items)
    files = list(dict.fromkeys(unit_of(item.nodeid) for item in items))
    assert files == ["long.py", "more.py", "one.py", "many.py", "few.py"]


@pytest.mark.parametrize(("count", "workers"), [(12, 4), (23, 4), (6, 8), (7, 2), (5, 1)])
def test_parts_of_workers_begin_with_what_is_long(count: int, workers: int) -> None:
    items: list[Any] = [Item(f"a.py::test_{i}") for i in range(count)]
    for number, mark in ((1, "early"), (3, "alone"), (4, "early"), (5, "alone")):
        items[number:number] = [Item(f"b.py::test_{number}", mark)]
    before = list(items)
    spread(items, workers)
    assert sorted(item.nodeid for item in items) == sorted(item.nodeid for item in before)
    # As pytest-xdist gives them out.
    parts, left = [], list(items)
    for i in range(workers):
        size = len(left) // (workers - i)
        parts.append([item.markers for item in left[:size]])
        del left[:size]
    assert [part[0] for part in parts[:2]] == [("early",)] * min(workers, 2)
    assert parts[-1][-2:] == [("alone",)] * len(parts[-1][-2:])
    assert sum(part.count(("early",)) for part in parts) == 2


def test_parts_come_first_and_run_at_the_same_time(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    for name, text in {"conftest": CONFTEST, "test_a": MANY, "test_b": LONG}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = early\n gpu\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadfile", "."]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    why = why_no_gpu()
    assert f"{11 + (why is None)} passed" in done.stdout, done.stdout + done.stderr
    left_out = f"1 tests that need a GPU were left out: {why}"
    assert (left_out in done.stdout.splitlines()) == (why is not None)
    ran = re.findall(r"\[gw(\d)\].* PASSED test_(\w)\.py::test_(\w+)", done.stdout)
    assert {worker for worker, _, name in ran if name == "long"} == {"0", "1"}
    assert [name for _, _, name in ran][:2] == ["long", "long"]
    assert len({worker for worker, file, _ in ran if file == "a"}) == 1
