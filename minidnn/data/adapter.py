"""Batches that something else makes: PyTorch's DataLoader, grain, a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from minidnn.data.datasets import DataError, as_array, as_numbers, as_targets
from minidnn.data.loader import Epochs

__all__ = ["Batches"]


class Batches(Epochs):
    """Batches of any iterable, as a :class:`~minidnn.data.loader.Loader` gives them.

    Restoring a state reads the batches before it and drops them.  They are the same only if the
    source gives the same in the same epoch, so what shuffles is best made for each epoch::

        Batches(lambda epoch: DataLoader(data, 64, shuffle=True, generator=seeded(epoch)))

    Args:
        source: an iterable of batches, or a function of the epoch that returns one.
        convert: makes (x, target), in that order, of what the source gives, if it is no such pair.
        finite: whether NaN and infinities in x are refused.

    Raises:
        DataError: the source can be read only once, or gives what is no batch.

    >>> train = md.data.Batches(batches)
    >>> for x, target in train:
    ...     print(x.shape, x.dtype)
    """

    def __init__(
        self,
        source: Iterable[Any] | Callable[[int], Iterable[Any]],
        convert: Callable[[Any], tuple[Any, Any]] | None = None,
        finite: bool = True,
    ) -> None:
        super().__init__()
        self._source, self._convert, self._finite = source, convert, finite
        if not callable(source) and not isinstance(source, Iterable):
            raise DataError(
                f"source is a {type(source).__name__}; valid are an iterable of batches, and a "
                "function of the epoch that returns one"
            )

    def __len__(self) -> int:
        return len(self._of(self._epoch))

    def _of(self, epoch: int) -> Any:
        return self._source(epoch) if callable(self._source) else self._source

    def _batches(self, epoch: int, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        place = -1
        for place, item in enumerate(self._of(epoch)):
            if place >= first:
                yield self._pair(item, f"batch {place} of epoch {epoch}")
        if place < max(first - 1, 0):
            raise DataError(
                f"the source has {place + 1} batches in epoch {epoch}, and more were expected; an "
                "iterator can be read only once: give a list, or a function of the epoch"
            )

    def _pair(self, item: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
        if self._convert is not None:
            item = self._convert(item)
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"{name} is a {type(item).__name__}; valid is a pair (x, target): give convert=, a "
                "function that makes one"
            )
        x, target = as_numbers(as_array(item[0])), as_targets(as_array(item[1]))
        if len(x) != len(target):
            raise DataError(f"{name} has {len(x)} samples and {len(target)} targets")
        if self._finite and not np.isfinite(x).all():
            raise DataError(f"{name} has NaN or infinities; finite=False lets them pass")
        return x, target
