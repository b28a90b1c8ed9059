"""Medians and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.measure import median, ratio


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # The ranks (from 0) of the sign test's table at 95 %.
    [(1, 0, 0), (5, 0, 4), (6, 0, 5), (7, 0, 6), (9, 1, 7), (12, 2, 9), (15, 3, 11), (25, 7, 17)],
)
def test_the_interval_lies_between_the_ranks_of_the_sign_test(
    count: int, low: int, high: int
) -> None:
    samples = np.random.default_rng(count).permutation(count).astype(float)
    estimate = median(list(samples))
    assert (estimate.value, estimate.low, estimate.high) == ((count - 1) / 2, low, high)


@pytest.mark.parametrize("count", [7, 12, 31])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int) -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        estimate = median(list(random.lognormal(0.0, 1.0, count)))
        held += estimate.low <= 1.0 <= estimate.high
    assert held / 2000 > 0.94


def test_many_samples() -> None:
    """Calls of microseconds make thousands: the ranks are those of a normal distribution, soon."""
    count = 30_000
    found = median(range(count))
    apart = 1.959964 * count**0.5 / 2
    assert found.low == pytest.approx(count / 2 - apart, abs=2)
    assert found.high == pytest.approx(count / 2 + apart, abs=2)


def test_ratios_are_of_samples_of_one_round() -> None:
    estimate = ratio([2.0, 30.0, 4.0], [1.0, 10.0, 1.0])
    assert (estimate.value, estimate.low, estimate.high) == (3.0, 2.0, 4.0)
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="samples is empty"):
        median([])


def test_an_estimate_prints_its_interval() -> None:
    assert f"{median([1.0, 2.0, 3.0]):.1f}" == "2.0 [1.0, 3.0]"
