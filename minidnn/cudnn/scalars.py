"""alpha, beta and fill values: numbers on the host that cuDNN reads through a pointer."""

from __future__ import annotations

import ctypes
from typing import Any

_cache: dict[tuple[float, bool], Any] = {}
_LIMIT = 1024


def scalar(value: float, double: bool) -> Any:
    """Return a pointer argument to ``value`` as a C double or float.

    The pointer keeps its number alive, and equal numbers share one.
    """
    key = (value, double)
    made = _cache.get(key)
    if made is None:
        if len(_cache) >= _LIMIT:
            _cache.clear()
        made = ctypes.byref(ctypes.c_double(value) if double else ctypes.c_float(value))
        _cache[key] = made
    return made


ONE = scalar(1.0, False)
ZERO = scalar(0.0, False)
DOUBLE_ONE = scalar(1.0, True)
DOUBLE_ZERO = scalar(0.0, True)


def ints(values: Any) -> Any:
    """Return a C array of 32-bit integers."""
    return (ctypes.c_int * len(values))(*values)
