"""Random numbers that belong to a sample: the same in whatever batch, thread or process it is read.

They are a function of (seed, epoch, sample, call, element), so there is no state to keep, and a
batch is drawn for at once.
"""

from __future__ import annotations

from math import prod

import numpy as np

from minidnn.graph.philox import philox

#: Keeps them apart from the numbers of dropout, for the same seed.
_DATA = 0x64617461


class Draws:
    """Random numbers for the samples of one batch.

    Every call gives new ones, with a first axis of one entry a sample.  What a step draws must not
    depend on what is in the batch, so that a sample's numbers stay its own: draw all that may be
    needed, at once.

    Args:
        seed: from 0 to 2**64 - 1.
        epoch, samples: the epoch, and the numbers of the batch's samples, from 0 to 2**32 - 1.

    >>> draws = md.data.Draws(seed=0, epoch=0, samples=np.arange(4))
    >>> print(draws.uniform(2).shape)
    """

    def __init__(self, seed: int, epoch: int, samples: np.ndarray) -> None:
        self._key = (seed & 0xFFFFFFFF, seed >> 32 ^ _DATA)
        self._epoch, self._samples, self._calls = epoch, np.asarray(samples, np.uint64), 0

    def __len__(self) -> int:
        return len(self._samples)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """Numbers ``(samples, *shape)``, float64, from ``low`` to below ``high``."""
        self._calls += 1
        count = prod(shape)
        pairs = np.arange(-(-count // 2))
        counter = (pairs, self._calls, self._samples[:, None], self._epoch)
        words = philox([np.asarray(word) for word in counter], self._key)
        a, b, c, d = words
        bits = np.stack([a << np.uint64(32) | b, c << np.uint64(32) | d], axis=-1) >> np.uint64(11)
        unit = bits.reshape(len(self), -1)[:, :count] * 2.0**-53
        return (low + (high - low) * unit).reshape(len(self), *shape)

    def integers(self, count: int, *shape: int) -> np.ndarray:
        """Whole numbers ``(samples, *shape)``, int64, from 0 to ``count - 1``."""
        return (self.uniform(*shape) * count).astype(np.int64)

    def normal(self, *shape: int) -> np.ndarray:
        """Numbers ``(samples, *shape)``, float64, of the standard normal distribution."""
        radius, angle = np.moveaxis(self.uniform(*shape, 2), -1, 0)
        return np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
