"""PyTorch's own samples of operators through the bridge, beside what is recorded of them.

An operator that was wrong and is right now, or of which minidnn computes more or less, asks for
``python -m tests.torch.programs.operators --write``.
"""

from __future__ import annotations

import warnings

import pytest

from tests.torch.programs.operators import RECORD, record, recorded, scope
from tests.torch.programs.ways import COMPILE, OPTIMIZE

PARTS = 8


def names(part: int) -> list[str]:
    return sorted(scope())[part::PARTS]


def differing(way: str, part: int, most: int) -> list[str]:
    """What is found otherwise than it is recorded."""
    known, found = recorded(), []
    for name in names(part):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch's samples
            now, text = record(scope()[name], way, most)
        before = known.get(name)
        if before is None or bool(now.fault) > bool(before.fault):
            found.append(f"{name}: {now} instead of {before}: {text:.400}")
        elif way == OPTIMIZE and now != before:
            found.append(f"{name}: {now} instead of {before}")
    return found


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS), ids=lambda part: f"part-{part}")
def test_samples(part: int) -> None:
    pytest.importorskip("expecttest", reason="PyTorch's samples need it")
    from tests.torch.programs.operators import MOST

    assert differing(OPTIMIZE, part, MOST) == []


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS), ids=lambda part: f"part-{part}")
def test_some_samples_by_torch_compile(part: int) -> None:
    pytest.importorskip("expecttest", reason="PyTorch's samples need it")
    assert differing(COMPILE, part, 3) == []


def test_most_samples_are_right() -> None:
    """What is recorded is no list of failures."""
    found = recorded().values()
    assert len(found) > 150, RECORD
    assert sum(each.right for each in found) >= 0.9 * sum(each.samples for each in found)
    assert sum(each.taken for each in found) >= 0.5 * sum(each.samples for each in found)
