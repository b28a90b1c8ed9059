"""PyTorch's threads, which go on polling for work after an operation.

Its OpenMP threads spin for milliseconds before they sleep (libgomp 300,000 rounds, LLVM's and
Intel's libomp 200 ms) and meanwhile take half of each core from whoever computes next.
``omp_pause_resource_all`` (OpenMP 5.0) ends the idle threads of the calling one; the next parallel
operation of PyTorch starts them again, which takes some ten microseconds.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache

_SOFT = 1  # omp_pause_soft: what is kept in threads stays as it is


def rest() -> None:
    """Ends the threads of PyTorch that wait for this thread's next operation, where that can be."""
    for pause in _pauses():
        pause(_SOFT)


@cache
def _pauses() -> tuple[Callable[[int], int], ...]:
    """The function of each OpenMP library that this process has loaded; none where that cannot
    be told, or the library is older than OpenMP 5.0."""
    found = []
    for path in _loaded():
        pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
        if pause is not None:
            pause.argtypes, pause.restype = [ctypes.c_int], ctypes.c_int
            found.append(pause)
    return tuple(found)


def _loaded() -> list[str]:
    """The paths of the OpenMP libraries in this process."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as file:
            mapped = file.read()
    except OSError:  # not Linux
        return []
    return list(dict.fromkeys(re.findall(r"(/\S*/lib(?:gomp|omp|iomp5)[^/\s]*\.so\S*)", mapped)))
