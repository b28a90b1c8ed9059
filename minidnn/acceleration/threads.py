"""PyTorch's threads, which go on polling for work after an operation.

Its OpenMP threads spin for milliseconds before they sleep (libgomp 300,000 rounds, LLVM's and
Intel's libomp 200 ms) and meanwhile take half of each core from whoever computes next.  So a part
between operations of PyTorch's computes with these very threads: ``GOMP_parallel``, by which
compiled code enters a parallel region, has them call what it is given.  Where PyTorch only may
have computed before, or that function is not there, they are ended: ``omp_pause_resource_all``
(OpenMP 5.0) ends the idle threads of the calling one.  The next parallel operation of PyTorch
starts them again, which takes a tenth of a millisecond.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from functools import cache

import torch

_SOFT = 1  # omp_pause_soft: what is kept in threads stays as it is


def rest() -> None:
    """Ends the threads of PyTorch that wait for this thread's next operation, where that can be."""
    for pause in _pauses():
        pause(_SOFT)


def team_of(threads: int) -> int | None:
    """The address of the function that has PyTorch's threads call another; None where there is no
    such function, or PyTorch computes with another number of them: each change of it would end
    and start threads."""
    if threads == 1 or torch.get_num_threads() != threads:
        return None
    for library in _libraries():
        parallel = getattr(library, "GOMP_parallel", None)
        if parallel is not None and _is_pytorchs(library):
            _rest_before_forks()
            return ctypes.cast(parallel, ctypes.c_void_p).value
    return None


@cache
def _rest_before_forks() -> None:
    """A child of a fork has none of the threads that libgomp would go on using, and waits for
    them in PyTorch's next operation."""
    os.register_at_fork(before=rest)


def _is_pytorchs(library: ctypes.CDLL) -> bool:
    """Whether PyTorch computes with this OpenMP library: it counts the threads that this has."""
    before = library.omp_get_max_threads()
    library.omp_set_num_threads(before + 1)
    try:
        return torch.get_num_threads() == before + 1
    finally:
        library.omp_set_num_threads(before)


@cache
def _pauses() -> tuple[Callable[[int], int], ...]:
    """The function of each OpenMP library that this process has loaded; none where that cannot
    be told, or the library is older than OpenMP 5.0."""
    found = []
    for library in _libraries():
        pause = getattr(library, "omp_pause_resource_all", None)
        if pause is not None:
            pause.argtypes, pause.restype = [ctypes.c_int], ctypes.c_int
            found.append(pause)
    return tuple(found)


@cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    return tuple(map(ctypes.CDLL, _loaded()))


def _loaded() -> list[str]:
    """The paths of the OpenMP libraries in this process."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as file:
            mapped = file.read()
    except OSError:  # not Linux
        return []
    return list(dict.fromkeys(re.findall(r"(/\S*/lib(?:gomp|omp|iomp5)[^/\s]*\.so\S*)", mapped)))
