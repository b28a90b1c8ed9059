"""Numbers as they lie in memory."""

from __future__ import annotations

import numpy as np

from minidnn.graph.types import rounded_to


def to_bits(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array as it lies in memory as ``dtype``: 16 bits each for bfloat16."""
    if dtype == "bfloat16":
        single = np.ascontiguousarray(rounded_to(dtype, array))
        bits = (single.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        # A NaN may have all that tells it from infinity in the lower half.
        return np.where(np.isnan(single), bits | np.uint16(0x40), bits)
    return np.ascontiguousarray(array, dtype)


def from_bits(array: np.ndarray, dtype: str) -> np.ndarray:
    """The inverse of :func:`to_bits`: bfloat16 becomes float32."""
    if dtype == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array
