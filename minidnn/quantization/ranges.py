"""Which range of a value's numbers its bytes stand for, from a histogram of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from minidnn.graph.quantization import Steps

#: Bins of a histogram, and the levels that a byte has.
BINS = 2048
LEVELS = 256
#: Parts of the whole range that are tried, where one is looked for.
_PARTS = np.linspace(1.0, 0.2, 81)


@dataclass(frozen=True)
class Histogram:
    """How often numbers fell into bins of equal width.

    Attributes:
        low, high: the least and the largest number; 0 lies between them.
        counts: of each bin.
    """

    low: float
    high: float
    counts: np.ndarray

    @property
    def centers(self) -> np.ndarray:
        width = (self.high - self.low) / len(self.counts)
        return self.low + width * (np.arange(len(self.counts)) + 0.5)


#: From a histogram, and the part of all numbers that "percentile" keeps, to a range.
Choose = Callable[[Histogram, float], tuple[float, float]]


def steps_of(low: float, high: float, dtype: str) -> Steps:
    """The bytes for numbers from ``low`` to ``high``, which 0 is one of: of uint8 all between, of
    int8 as far on both sides of 0."""
    if dtype == "int8":
        scale, zero = max(-low, high) / 127, 0
    else:
        scale = (high - low) / (LEVELS - 1)
        zero = 0
    least = float(np.finfo(np.float32).tiny)
    rounded = float(np.float32(max(scale, least)))
    if dtype == "uint8":
        zero = int(np.clip(np.rint(-low / rounded), 0, LEVELS - 1))
    return Steps(rounded, zero, dtype)


def _all(found: Histogram, percentile: float) -> tuple[float, float]:
    return found.low, found.high


def _percentile(found: Histogram, percentile: float) -> tuple[float, float]:
    """Without the same part of the numbers on either side, but with 0."""
    share = np.cumsum(found.counts) / max(1.0, float(found.counts.sum()))
    cut = (1 - percentile / 100) / 2
    edges = np.linspace(found.low, found.high, len(found.counts) + 1)
    first = int(np.searchsorted(share, cut, "right"))
    last = int(np.searchsorted(share, 1 - cut, "left"))
    return min(0.0, float(edges[first])), max(0.0, float(edges[min(last + 1, len(edges) - 1)]))


def _least(found: Histogram, cost: Callable[[float, float], float]) -> tuple[float, float]:
    """Of parts of the whole range the one that costs least."""
    ranges = [(part * found.low, part * found.high) for part in _PARTS]
    return min(ranges, key=lambda each: cost(*each))


def _error(found: Histogram, percentile: float) -> tuple[float, float]:
    """With the least squared error of the numbers."""
    centers = found.centers

    def squares(low: float, high: float) -> float:
        step = max(high - low, 1e-30) / (LEVELS - 1)
        rounded = np.clip(np.rint((centers - low) / step), 0, LEVELS - 1) * step + low
        return float(((centers - rounded) ** 2 * found.counts).sum())

    return _least(found, squares)


def _entropy(found: Histogram, percentile: float) -> tuple[float, float]:
    """With the least divergence (Kullback and Leibler) of the bytes' distribution from that of the
    numbers, of which those beyond the range are counted at its ends."""
    counts = found.counts.astype(np.float64)
    centers = found.centers
    # 0 has a byte of its own; behind an activation it is most of all numbers, and would decide.
    counts[int(np.abs(centers).argmin())] = 0
    if not counts.any():
        return found.low, found.high

    def divergence(low: float, high: float) -> float:
        inside = np.flatnonzero((centers >= low) & (centers <= high))
        if len(inside) < 2:
            return np.inf
        first, last = inside[0], inside[-1]
        kept = counts[first : last + 1].copy()
        level = np.arange(len(kept)) * LEVELS // len(kept)
        filled = kept > 0
        total = np.bincount(level, kept, LEVELS)
        bins = np.bincount(level, filled, LEVELS)
        spread = np.where(filled, (total / np.maximum(bins, 1))[level], 0)
        kept[0] += counts[:first].sum()
        kept[-1] += counts[last + 1 :].sum()
        p, q = kept / kept.sum(), spread / max(spread.sum(), 1e-30)
        # What falls where no byte's share is counts as if a little did.
        some = p > 0
        return float((p[some] * np.log(p[some] / np.maximum(q[some], 1e-9))).sum())

    return _least(found, divergence)


RANGES: Mapping[str, Choose] = {
    "minmax": _all,
    "percentile": _percentile,
    "entropy": _entropy,
    "error": _error,
}
"""How a range is chosen, by name."""
