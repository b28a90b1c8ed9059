"""NumPy's whole numbers as Python's, wherever a caller gives sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """A size, or sizes, as Python has them: NumPy's ints become ints, arrays of them tuples.

    Tuples, lists and dicts are gone through; whatever else there is stays as it is, so that who
    checks it can say what is wrong with it.

    >>> plain((np.int64(1), np.uint8(3)))
    (1, 3)
    """
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim < 2:
        return tuple(value.tolist()) if value.ndim else int(value)
    if isinstance(value, (tuple, list)):
        each = [plain(one) for one in value]
        return each if isinstance(value, list) else tuple(each)
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return value
