"""How blocks and threads share sums."""

from __future__ import annotations

from math import gcd

import pytest

from minidnn.backends.cuda.partial_sums import THREADS, grid_of_columns, grid_of_planes


@pytest.mark.parametrize("channels", [7, 16, 24, 27, 96, 144, 672, 1152, 1280, 2056, 4096])
def test_halves_leave_few_threads_idle(channels: int) -> None:
    lanes = gcd(8, channels)
    packs = channels // lanes
    grid = grid_of_columns(packs, 2 * lanes, narrow=True)
    assert grid.threads <= THREADS and grid.wide * grid.beside >= packs
    # Every block has packs of its own.
    assert grid.wide * (grid.beside - 1) < packs
    warps = -(-grid.threads // 32)
    assert packs * grid.step >= 0.9 * grid.beside * warps * 32


@pytest.mark.parametrize("count", [1, 49, 3136, 128 * 12544, 10**7])
@pytest.mark.parametrize("groups", [1, 3, 128])
@pytest.mark.parametrize("narrow", [False, True])
def test_parts_are_of_some_packs_and_not_of_too_many(count: int, groups: int, narrow: bool) -> None:
    for grid in (grid_of_columns(18, 16, narrow), grid_of_planes(40, narrow)):
        part = grid.part(count, groups)
        assert 0 < part <= 256 * grid.step and part % grid.step == 0
        if count > 10**6 and narrow:
            assert groups * grid.beside * -(-count // part) >= 200


def test_float32_is_shared_as_ever() -> None:
    """Its sums would have other bits otherwise."""
    found = [grid_of_columns(packs, 16, narrow=False) for packs in (4, 18, 36, 168)]
    assert [(g.wide, g.step, g.beside) for g in found] == [
        *((4, 64, 1), (8, 32, 3), (16, 16, 3), (32, 8, 6)),
    ]
    assert [g.part(25088, 1) // g.step for g in found] == [4, 5, 10, 37]
