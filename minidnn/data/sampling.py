"""Orders of samples other than each of them once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from minidnn.data.datasets import DataError

__all__ = ["WeightedSampler"]


class WeightedSampler:
    """Draws samples by weights, for an epoch of a :class:`Loader`, as PyTorch's
    ``WeightedRandomSampler`` does.

    Args:
        weights: a number of at least 0 for each sample; they need not add up to 1.
        num_samples: samples of an epoch; None is as many as there are weights.
        replacement: whether a sample may be drawn several times in an epoch.

    Raises:
        DataError: an argument is not valid.

    >>> pictures = md.data.Arrays(np.zeros((8, 3, 32, 32)), np.arange(8))
    >>> sampler = md.data.WeightedSampler([1, 1, 1, 1, 3, 3, 3, 3])
    >>> train = md.data.Loader(pictures, 4, sampler=sampler)
    """

    def __init__(
        self,
        weights: Sequence[float] | np.ndarray,
        num_samples: int | None = None,
        replacement: bool = True,
    ) -> None:
        given: Any = np.asarray(weights)
        numbers = given.ndim == 1 and given.size and given.dtype.kind in "buif"
        if not numbers or not np.isfinite(given).all() or (given < 0).any() or not given.any():
            raise DataError(
                f"WeightedSampler: weights={weights!r:.80}; valid is a number of at least 0 for "
                "each sample, not all 0"
            )
        count = len(given) if num_samples is None else num_samples
        drawable = int(np.count_nonzero(given))
        if type(count) is not int or count < 1 or (not replacement and count > drawable):
            most = "" if replacement else f" to {drawable}, the samples with a weight above 0"
            raise DataError(
                f"WeightedSampler: num_samples={count!r:.80}, replacement={replacement!r}; valid "
                f"is an int from 1{most}"
            )
        self.weights = given.astype(np.float64)
        self.num_samples, self.replacement = count, bool(replacement)

    @classmethod
    def balanced(cls, labels: Sequence[int] | np.ndarray, num_samples: int | None = None) -> Self:
        """A sampler that draws each class as often as any other, by the samples' classes."""
        given: Any = np.asarray(labels)
        if given.ndim != 1 or given.dtype.kind not in "iu" or not given.size:
            raise DataError(f"WeightedSampler: labels={labels!r:.80}; valid are ints, (N,)")
        _, places, counts = np.unique(given, return_inverse=True, return_counts=True)
        return cls(1.0 / counts[places], num_samples)

    def __len__(self) -> int:
        return self.num_samples

    def facts(self) -> str:
        """What tells it from other samplers, in a loader's state."""
        digest = hashlib.sha256(self.weights.tobytes()).hexdigest()[:16]
        return f"weights {digest}, {self.num_samples}, replacement={self.replacement}"

    def order(self, random: np.random.Generator) -> np.ndarray:
        """The samples of an epoch."""
        share = self.weights / self.weights.sum()
        return random.choice(len(share), self.num_samples, self.replacement, share)
