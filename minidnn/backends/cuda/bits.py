"""Numbers as they lie in device memory."""

from __future__ import annotations

import numpy as np

from ...graph.types import rounded_to


def to_bits(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array as it lies in memory as ``dtype``: 16 bits each for bfloat16."""
    if dtype == "bfloat16":
        single = np.ascontiguousarray(rounded_to(dtype, array))
        return (single.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.ascontiguousarray(array, dtype)


def from_bits(array: np.ndarray, dtype: str) -> np.ndarray:
    """The inverse of :func:`to_bits`: bfloat16 becomes float32."""
    if dtype == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array
