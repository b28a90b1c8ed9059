"""Bytes to compute with."""

from __future__ import annotations

import numpy as np


def drawn(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """All numbers of a byte, the outermost often."""
    bounds = np.iinfo(dtype)
    found = random.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
    found[random.random(shape) < 0.2] = bounds.min
    found[random.random(shape) < 0.2] = bounds.max
    return found
