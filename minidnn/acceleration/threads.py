"""PyTorch's threads, which go on polling for work after an operation.

Its OpenMP threads spin for milliseconds before they sleep (libgomp 300,000 rounds, LLVM's and
Intel's libomp 200 ms) and meanwhile take half of each core from whoever computes next.  So a part
between operations of PyTorch's computes with these very threads: ``GOMP_parallel``, by which
compiled code enters a parallel region, has them call what it is given.  Where PyTorch only may
have computed before, or that function is not there, they are ended: ``omp_pause_resource_all``
(OpenMP 5.0) ends the idle threads of the calling one.  The next parallel operation of PyTorch
starts them again, which takes a tenth of a millisecond.  A thread that ends takes locks of MKL's;
in a child of a fork that took place while other threads ran, one of these may hold such a lock for
ever.  There PyTorch's threads are not ended, and poll.

A child of a fork has none of these threads, while libgomp believes that the thread that forked
still has them, and waits for them for ever.  So they are ended before every fork, from the import
of minidnn on (``minidnn/__init__.py``); a process that was forked before it is found out here.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable
from functools import cache

import torch

from minidnn import _forks
from minidnn._forks import imported_by

_SOFT = 1  # omp_pause_soft: what is kept in threads stays as it is


def rest() -> None:
    """Ends the threads of PyTorch that wait for this thread's next operation, where that can be."""
    if threading.get_ident() != _bereft and not _forks.beside_threads():
        end()


def end() -> None:
    """Ends them whatever may be locked: else a child of a fork would wait for them for ever."""
    if threading.get_ident() != _bereft:
        for pause in _pauses():
            pause(_SOFT)


def team_of(threads: int) -> int | None:
    """The address of the function that has PyTorch's threads call another; None where there is no
    such function, or PyTorch computes with another number of them: each change of it would end
    and start threads."""
    if threads == 1 or torch.get_num_threads() != threads or _bereft is not None:
        return None
    for library in _libraries():
        parallel = getattr(library, "GOMP_parallel", None)
        if parallel is not None and _is_pytorchs(library):
            return ctypes.cast(parallel, ctypes.c_void_p).value
    return None


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


def _loaded(process: str = "self") -> list[str]:
    """The paths of the OpenMP libraries in a process."""
    try:
        with open(f"/proc/{process}/maps", encoding="utf-8") as file:
            mapped = file.read()
    except OSError:  # not Linux
        return []
    return list(dict.fromkeys(re.findall(r"(/\S*/lib(?:gomp|omp|iomp5)[^/\s]*\.so\S*)", mapped)))


def _may_lack_threads() -> bool:
    """Whether this process was forked, not started, by one that had an OpenMP library and not yet
    imported minidnn: its main thread may then have no threads, and not know it."""
    if imported_by != os.getpid():
        return False  # minidnn was there, and ended them before
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:
            _, parent, *_, flags = file.read().rpartition(")")[2].split()[:7]
        if not int(flags) & _FORKED:
            return False
        # One that has no parent any more may have had one with such a library.
        known = os.path.samefile(f"/proc/{parent}/exe", "/proc/self/exe")
    except OSError:
        return os.path.exists("/proc/self/stat")
    return not known or bool(_loaded(parent))


#: Linux's PF_FORKNOEXEC: the process is a copy of its parent and runs no program of its own.
_FORKED = 0x40
#: The thread that may have lost its OpenMP threads in a fork, if any.
_bereft = threading.main_thread().ident if _may_lack_threads() else None
