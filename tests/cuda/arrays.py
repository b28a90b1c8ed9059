"""Values as they lie in device memory, and back."""

from __future__ import annotations

import numpy as np

from minidnn.backends.cuda.tensor import Tensor

#: bfloat16 lies in 16 bits, of which NumPy knows nothing.
STORED: dict[str, np.dtype] = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16)}
STORED["bfloat16"] = np.dtype(np.uint16)
STORED |= {name: np.dtype(name) for name in ("int8", "uint8", "int32")}


def stored(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array's numbers as they are stored; they must be numbers of that dtype."""
    if dtype != "bfloat16":
        return array.astype(STORED[dtype])
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def numbers(array: np.ndarray, dtype: str) -> np.ndarray:
    """The reference's numbers for stored ones."""
    if dtype != "bfloat16":
        return array
    return (array.astype(np.uint32) << 16).view(np.float32)


def strided(memory: np.ndarray, tensor: Tensor, images: int) -> np.ndarray:
    """A tensor's elements in memory, as an array of (images, channels, rows, columns)."""
    item = memory.itemsize
    shape = (images, tensor.channels, tensor.rows, tensor.columns)
    strides = tuple(s * item for s in (tensor.image, tensor.channel, tensor.row, tensor.pixel))
    return np.lib.stride_tricks.as_strided(memory[tensor.offset :], shape, strides)
