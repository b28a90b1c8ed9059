"""A batch in parts: all rows, in the least time."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from minidnn.dynamic.split import parts_of


@given(
    st.integers(1, 40),
    st.dictionaries(st.integers(1, 20), st.floats(0.1, 10.0), min_size=1, max_size=4),
)
def test_every_row_is_computed_in_the_least_time(total: int, seconds: dict[int, float]) -> None:
    parts = parts_of(total, seconds)
    if min(seconds) > total:
        assert parts is None
        return
    assert parts is not None
    rows = {row for part in parts for row in range(part.begin, part.end)}
    assert rows == set(range(total))
    assert all(part.rows in seconds for part in parts)
    found = sum(seconds[part.rows] for part in parts)
    fit = [rows for rows in seconds if rows <= total]
    for count in range(1, 4):
        for others in itertools.combinations_with_replacement(fit, count):
            if sum(others) >= total:
                assert found <= sum(seconds[each] for each in others) * (1 + 1e-9)


def test_very_many_rows() -> None:
    parts = parts_of(1_000_003, {1: 1.0, 64: 32.0})
    assert parts is not None and len(parts) < 16_000
    end = 0
    for part in parts:
        assert part.begin <= end < part.end
        end = part.end
    assert end == 1_000_003
