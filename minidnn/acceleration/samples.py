"""Samples of weights: some of their words, read all at once before every call.

PyTorch counts writes to a tensor, but not those to ``tensor.data`` or to a NumPy view of it.
Averages of weights (``teacher.data.mul_(m).add_(...)``) are written so, and change every element.
So a few words of each weight tell, and of a small weight all of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

_WORD = 4
#: So many words of a weight are read: all of a weight with no more.
_WORDS = 8


class WeightSamples:
    """Words of tensors on the CPU, as they were.

    One array spans the memory from the first tensor to the last, and one gather reads it at the
    words of tensors alone.  What is not on the CPU is not looked at: a GPU would have to be waited
    for.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        places: list[int] = []
        addresses: list[int] = []
        for place, tensor in enumerate(tensors):
            if not is_sampled(tensor):
                continue
            count, begin = _words_of(tensor), tensor.data_ptr()
            words = np.unique(np.linspace(0, count - 1, min(count, _WORDS)).astype(np.int64))
            addresses += [begin + _WORD * int(word) for word in words]
            places += [place] * len(words)
        self._places = places
        self._memory = np.empty(0, np.uint32)
        self._words = np.empty(0, np.int64)
        if addresses:
            first = min(addresses)
            count = (max(addresses) - first) // _WORD + 1
            self._memory = np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(first))
            self._words = (np.array(addresses, np.int64) - first) // _WORD
        self._before = self._memory.take(self._words).tobytes()

    def are_the_same(self) -> bool:
        """Whether the words are as they were; the tensors must still lie where they lay."""
        return self._memory.take(self._words).tobytes() == self._before

    def changed(self) -> int | None:
        """The place of a tensor that is not as it was, or None."""
        now = self._memory.take(self._words)
        others = np.flatnonzero(now != np.frombuffer(self._before, np.uint32))
        return self._places[int(others[0])] if len(others) else None


def is_sampled(tensor: Any) -> bool:
    """Whether words of a tensor are read."""
    lies = tensor.is_cpu and tensor.is_contiguous() and tensor.data_ptr() % _WORD == 0
    return lies and _words_of(tensor) > 0


def _words_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size() // _WORD)
