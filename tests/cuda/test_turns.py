"""How workers share GPUs."""

from __future__ import annotations

import pytest

from .turns import gpu_of


@pytest.mark.parametrize(
    ("worker", "seen", "count", "gpu"),
    [
        ("gw0", None, 2, "0"),
        ("gw3", None, 2, "1"),
        ("gw3", "5,7,9", 4, "5"),
        ("gw1", None, 0, None),
    ],
)
def test_workers_take_turns(worker: str, seen: str | None, count: int, gpu: str | None) -> None:
    assert gpu_of(worker, seen, count) == gpu
