"""Random numbers of a sample: its own, uniform, and unlike those of its neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.data import Draws


def draws(samples: object = range(20_000), seed: int = 0, epoch: int = 0) -> Draws:
    return Draws(seed, epoch, np.array(samples))


def test_a_sample_has_the_same_numbers_in_any_batch() -> None:
    whole, part = draws(range(100)), draws([7, 3, 99])
    for call in ("uniform", "normal"):
        np.testing.assert_array_equal(
            getattr(whole, call)(2, 3)[[7, 3, 99]], getattr(part, call)(2, 3)
        )
    np.testing.assert_array_equal(whole.integers(9)[[7, 3, 99]], part.integers(9))


def test_uniform_numbers_are_uniform_and_unlike_their_neighbours() -> None:
    numbers = draws()
    first, second = numbers.uniform(2).T
    others = {
        "element": second,
        "call": numbers.uniform(),
        "epoch": draws(epoch=1).uniform(),
        "seed": draws(seed=1).uniform(),
        "sample": np.roll(first, 1),
    }
    assert first.min() >= 0 and first.max() < 1
    counts = np.histogram(first, 20, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 44  # chi-squared with 19 degrees, p = 0.001
    for name, other in others.items():
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.025, name


def test_integers_and_normal_numbers() -> None:
    counts = np.bincount(draws().integers(7))
    assert len(counts) == 7 and abs(counts - 20_000 / 7).max() < 200
    normal = draws().normal(2)
    assert np.isfinite(normal).all()
    for moment, expected in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert abs((normal**moment).mean() - expected) < 0.12


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_extreme_seeds(seed: int) -> None:
    assert draws([0, 1], seed=seed, epoch=2**32 - 1).uniform(low=-2, high=-1).max() < -1
