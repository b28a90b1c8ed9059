"""Ranges: what is kept of a distribution, beside what their definitions say."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.quantization.calibration import BINS, RANGES, Histogram, steps_of

RANDOM = np.random.default_rng(2)


def histogram(values: np.ndarray) -> Histogram:
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    return Histogram(low, high, np.histogram(values, BINS, (low, high))[0])


def error(values: np.ndarray, low: float, high: float) -> float:
    """The mean squared error of rounding to 256 numbers."""
    steps = steps_of(low, high, "uint8")
    whole = np.clip(np.rint(values / steps.scale) + steps.zero, 0, 255)
    return float((((whole - steps.zero) * steps.scale - values) ** 2).mean())


DISTRIBUTIONS = {
    "normal": RANDOM.standard_normal(50_000),
    "positive": np.maximum(RANDOM.standard_normal(50_000), 0),
    "heavy": np.concatenate([RANDOM.standard_normal(50_000), np.array([60.0, -45.0])]),
    "shifted": RANDOM.random(50_000) * 3 - 1,
    "none": np.zeros(100),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_ranges(name: str) -> None:
    values = DISTRIBUTIONS[name]
    found = {how: choose(histogram(values), 99.9) for how, choose in RANGES.items()}
    whole = found["minmax"]
    assert whole == (min(0.0, values.min()), max(0.0, values.max()))
    for low, high in found.values():
        assert whole[0] <= low <= 0 <= high <= whole[1]
        steps_of(low, high, "uint8"), steps_of(low, high, "int8")
    # The histogram knows numbers to a 2048th of their range.
    best = error(values, *found["error"])
    assert best <= error(values, *whole) * 1.001
    parts = [error(values, part * whole[0], part * whole[1]) for part in (0.3, 0.5, 0.7, 0.9)]
    assert best <= min(parts) * 1.1 + 1e-12


def test_percentiles() -> None:
    values = DISTRIBUTIONS["normal"]
    low, high = RANGES["percentile"](histogram(values), 99.0)
    width = (values.max() - values.min()) / BINS
    assert low == pytest.approx(np.quantile(values, 0.005), abs=2 * width)
    assert high == pytest.approx(np.quantile(values, 0.995), abs=2 * width)


def test_entropy_cuts_outliers_and_nothing_else() -> None:
    low, high = RANGES["entropy"](histogram(DISTRIBUTIONS["heavy"]), 99.0)
    assert high - low < 60
    low, high = RANGES["entropy"](histogram(DISTRIBUTIONS["shifted"]), 99.0)
    assert (low, high) == pytest.approx((-1, 2), rel=0.1)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "wanted"),
    [
        (0.0, 255.0, "uint8", (1.0, 0)),
        (-128.0, 127.0, "uint8", (1.0, 128)),
        (-255.0, 0.0, "uint8", (1.0, 255)),
        (-127.0, 3.0, "int8", (1.0, 0)),
        (0.0, 254.0, "int8", (2.0, 0)),
    ],
)
def test_steps(low: float, high: float, dtype: str, wanted: tuple[float, int]) -> None:
    steps = steps_of(low, high, dtype)
    assert (steps.scale, steps.zero) == wanted
