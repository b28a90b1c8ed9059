"""Philox 4x32-10: a counter-based random number generator.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
It has no state: each number is a function of a counter and a key, so that any thread computes it
where, and as often as, it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: Sequence[np.ndarray], key: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Four random words of 32 bits for each counter of four such words, all stored as uint64."""
    a, b, c, d = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    for i in range(_ROUNDS):
        first, second = (np.uint64((key[j] + i * _STEPS[j]) & 0xFFFFFFFF) for j in (0, 1))
        x, y = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (y >> _HALF) ^ b ^ first, y & _LOW, (x >> _HALF) ^ d ^ second, x & _LOW
    return a, b, c, d


def random_words(count: int, seed: int, step: int, stream: int) -> np.ndarray:
    """``count`` random words of 32 bits.

    Word ``i`` is word ``i % 4`` for the counter ``(i // 4, stream, step)`` and the key ``seed``;
    ``stream`` has 32 bits, ``step`` and ``seed`` have 64.
    """
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    counter = (blocks, stream, *_halves(step))
    words = philox([np.asarray(word, np.uint64) for word in counter], _halves(seed))
    return np.stack(words, axis=-1).reshape(-1)[:count]


def _halves(number: int) -> tuple[int, int]:
    return number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF
