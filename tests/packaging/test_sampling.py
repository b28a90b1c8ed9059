"""What CI takes of a sweep, and what is kept of one run for the next."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import kept, sampling
from tests.conftest import pytest_configure
from tests.sampling import drawn, each_on_one, every, is_on, on, only, some

ISAS = ("one", "other")


def in_ci(params: list[Any]) -> list[Any]:
    """The values of those that are not marked ``full``."""
    return [each.values for each in params if not each.marks]


def test_a_part_of_each_sweep_runs_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIDNN_TEST_SAMPLE", raising=False)
    assert in_ci(every(3, range(8))) == [(0,), (3,), (6,)]
    assert in_ci(every(3, range(8), always=[7])) == [(0,), (3,), (6,), (7,)]
    assert in_ci(only([2, 5], range(8))) == [(2,), (5,)]
    cases = [f"case {i}" for i in range(40)]
    taken = in_ci(each_on_one(cases, ISAS).args[1])
    assert [pair[0] for pair in taken] == cases, "each with one instruction set"
    monkeypatch.setattr(sampling, "IS_FULL", False)
    assert some(range(8), 3) == [0, 3, 6]
    for isa in ISAS:
        found = on(cases, ISAS, isa)
        assert found == [case for case in cases if (case, isa) in taken]
        assert 10 < len(found) < 30 and all(is_on(case, ISAS, isa) for case in found)
    monkeypatch.setattr(sampling, "IS_FULL", True)
    assert some(range(8), 3) == list(range(8)) and on(cases, ISAS, "one") == cases


class Case:
    """What is known of a test when some are drawn."""

    def __init__(self, nodeid: str, step: int = 0) -> None:
        self.nodeid, self.step = nodeid, step

    def get_closest_marker(self, name: str) -> Any:
        assert name == "sampled"
        return pytest.mark.sampled(self.step).mark if self.step else None


def test_each_commit_draws_others(monkeypatch: pytest.MonkeyPatch) -> None:
    items: list[Any] = [Case("a.py::test_each"), Case("a.py::test_long", 3)]
    items += [Case(f"a.py::test_many[{i}]", 4) for i in range(22)]
    seen: dict[str, int] = {}
    for commit in map(str, range(60)):
        found = [item.nodeid for item in drawn(items, commit)]
        assert found == [item.nodeid for item in drawn(items, commit)], "the same each time"
        assert found == [item.nodeid for item in items if item.nodeid in found], "in order"
        assert 5 <= sum("many" in each for each in found) <= 6
        for each in found:
            seen[each] = seen.get(each, 0) + 1
    assert seen.pop("a.py::test_each") == 60 and 10 < seen.pop("a.py::test_long") < 30
    assert len(seen) == 22 and min(seen.values()) > 5 and max(seen.values()) < 30

    monkeypatch.setattr(sampling, "COSTLY", {"torch": 3})
    items = [Case(f"tests/torch/test_a.py::test_{i}[{j}]") for i in range(10) for j in range(2)]
    items += [Case("tests/graph/test_b.py::test_each")]
    ran = set()
    for commit in map(str, range(30)):
        found = [item.nodeid for item in drawn(items, commit)]
        assert len(found) in (7, 9) and found[-1] == items[-1].nodeid, "tests with all their cases"
        ran.update(found)
    assert len(ran) == 21

    cases = [f"case {i}" for i in range(40)]
    monkeypatch.setattr(sampling, "IS_FULL", False)
    taken = set()
    for commit in map(str, range(20)):
        monkeypatch.setenv("MINIDNN_TEST_SAMPLE", commit)
        found = on(cases, ISAS, "one") + on(cases, ISAS, "other")
        assert {pair[0] for pair in in_ci(each_on_one(cases, ISAS).args[1])} == set(found)
        assert 4 < len(found) < 25
        taken.update(found)
    assert taken == set(cases)
    monkeypatch.setattr(sampling, "IS_FULL", True)
    assert sampling.seed() is None and on(cases, ISAS, "one") == cases


@pytest.mark.parametrize(
    ("expression", "is_full"),
    [
        ("", False),
        ("not full", False),
        ("not full and gpu", False),
        ("full", True),
        ("full or not full", True),
    ],
)
def test_who_asks_for_long_variants_gets_all(
    expression: str, is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "IS_FULL", False)
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=expression), workerinput={})
    pytest_configure(config)
    assert is_full == sampling.IS_FULL


def test_what_is_compiled_is_kept_and_what_was_measured_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make(path: Path) -> None:
        made.append(path)
        path.write_bytes(b"x" * 600)

    for _ in range(2):
        assert kept.kept(tmp_path, "a.so", make).read_bytes() == b"x" * 600
    assert len(made) == 1 and not made[0].exists(), "written under another name"

    def interrupted(path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.kept(tmp_path, "b.so", interrupted)
    assert not (tmp_path / "emulator" / "b.so").exists()

    kept.kept(tmp_path, "c.so", make)
    os.utime(tmp_path / "emulator" / "a.so", (1, 1))
    for kind in ("ispc", "cpu_choices"):
        (tmp_path / kind / "00").mkdir(parents=True)
    monkeypatch.setattr(kept, "EMULATOR_BYTES", 1000)
    kept.forget_others(tmp_path)
    assert (tmp_path / "ispc" / "00").is_dir() and not (tmp_path / "cpu_choices").exists()
    assert (tmp_path / "emulator" / "c.so").is_file()
    assert not (tmp_path / "emulator" / "a.so").exists(), "the oldest go first"


def test_the_folder_is_the_users_or_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDNN_TEST_CACHE", "/somewhere")
    assert kept.folder() == Path("/somewhere")
    monkeypatch.setenv("MINIDNN_TEST_CACHE", "")
    assert kept.folder() is None
    monkeypatch.delenv("MINIDNN_TEST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert kept.folder() == Path("/caches/minidnn-tests")
