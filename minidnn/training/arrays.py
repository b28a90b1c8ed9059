"""Where arrays of a user's lie."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_on_gpu(array: Any) -> bool:
    """Whether an array, of whatever library, lies in a GPU's memory."""
    is_cuda = getattr(array, "is_cuda", None)  # PyTorch tells more than CPU or GPU by the other
    return hasattr(array, "__cuda_array_interface__") if is_cuda is None else bool(is_cuda)


def on_host(array: Any) -> np.ndarray:
    """The array itself, or a copy of what lies on a GPU."""
    if is_on_gpu(array):
        array = array.detach().cpu() if hasattr(array, "detach") else array.get()
    return np.asarray(array)
