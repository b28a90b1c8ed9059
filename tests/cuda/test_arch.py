"""What is known of architectures that no machine here has."""

from __future__ import annotations

import pytest

from minidnn.backends.cuda.arch import joins_three, shared_limit


@pytest.mark.parametrize(
    ("arch", "kib"),
    [("sm_80", 163), ("sm_89", 99), ("sm_90a", 227), ("sm_100", 227), ("sm_120", 99)],
)
def test_shared_memory_of_a_block(arch: str, kib: int) -> None:
    assert shared_limit(arch) == kib << 10


def test_maxima_of_three() -> None:
    assert [arch for arch in ("sm_80", "sm_89", "sm_90", "sm_120") if joins_three(arch)] == [
        "sm_90",
        "sm_120",
    ]
