"""Which classes the scores of a picture mean."""

from __future__ import annotations

import numpy as np


def ranked(scores: np.ndarray, top: int, are_probabilities: bool) -> tuple[list[int], list[float]]:
    """The classes with the ``top`` highest scores, highest first and of equal ones the first, and
    their probabilities: the softmax of scores that are none."""
    shares = scores
    if not are_probabilities:
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
    order = np.argsort(-scores, kind="stable")[:top]
    return [int(index) for index in order], [float(shares[index]) for index in order]
