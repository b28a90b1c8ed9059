"""The injected faults fit the tree; each is noticed by the tests that it names, in the full run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import FAULTS, Fault
from tests.faults.run import copies, try_fault


def test_each_fault_changes_the_source(root: Path) -> None:
    """So that a fault is not lost when what it changes is rewritten."""
    for fault in FAULTS:
        assert fault.changed(root) != (root / fault.file).read_text(encoding="utf-8")
        assert fault.file.startswith("minidnn/")


def test_each_fault_names_tests_that_there_are(root: Path) -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert fault.tests, fault.name
        for test in fault.tests:
            assert (root / test.partition("::")[0]).is_file(), f"{fault.name}: {test}"


def test_a_fault_is_taken_back(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    before = (tmp_path / "a.py").stat().st_mtime_ns
    fault = Fault("another number", "a.py", "x = 1", "x = 2", ("tests/a.py",))
    with pytest.raises(ZeroDivisionError), fault.injected(tmp_path):
        assert (tmp_path / "a.py").read_text() == "x = 2\ny = 1\n"
        raise ZeroDivisionError
    assert (tmp_path / "a.py").read_text() == "x = 1\ny = 1\n"
    assert (tmp_path / "a.py").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="stands 2 times in a"):
        Fault("two places", "a.py", "= 1", "= 2", ()).changed(tmp_path)


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with copies(1) as trees:
        yield trees.get()


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_each_fault_is_noticed(fault: Fault, tree: Path) -> None:
    result = try_fault(fault, tree)
    assert result.noticed, result
