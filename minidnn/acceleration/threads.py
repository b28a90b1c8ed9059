"""PyTorch's OpenMP threads, which spin after an operation: sharing them, and ending them.

These threads spin for milliseconds before they sleep (libgomp 300,000 rounds, LLVM's and Intel's
libomp 200 ms) and meanwhile take half of each core from the next computation.  So a part between
operations of PyTorch's computes on these very threads: it enters a parallel region as compiled code
does, by ``GOMP_parallel``, which has them call a function.  Where PyTorch need not have computed
before, or that function is missing, the threads are ended: ``omp_pause_resource_all`` (OpenMP 5.0)
ends the idle threads of the calling thread.  The next parallel operation of PyTorch starts them
again, which takes a tenth of a millisecond.  A thread that ends takes locks of MKL's; in a child of
a fork that happened while other threads ran, such a lock may be held for ever.  There PyTorch's
threads are not ended, and spin.

A child of a fork has none of these threads, while libgomp believes that the thread that forked
still has them, and waits for them for ever.  So they are ended before every fork, from the import
of minidnn on (``minidnn/__init__.py``).  This module detects a process that was forked before that.
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

_SOFT = 1  # omp_pause_soft: thread-private data keeps its values


def rest() -> None:
    """Ends PyTorch's threads that spin for this thread's next operation, where that is safe."""
    if threading.get_ident() != _thread_without_pool and not _forks.beside_threads():
        end()


def end() -> None:
    """Ends these threads even where a lock may be held: before a fork, whose child would otherwise
    wait for them for ever."""
    if threading.get_ident() != _thread_without_pool:
        for pause in _pauses():
            pause(_SOFT)


def team_of(threads: int) -> int | None:
    """The address of ``GOMP_parallel`` of PyTorch's OpenMP library, which runs a function on its
    threads; None where there is none, or PyTorch computes with another number of threads: each
    change of that number would end and start threads."""
    if threads == 1 or torch.get_num_threads() != threads or _thread_without_pool is not None:
        return None
    for library in _libraries():
        parallel = getattr(library, "GOMP_parallel", None)
        if parallel is not None and _is_pytorchs(library):
            return ctypes.cast(parallel, ctypes.c_void_p).value
    return None


def _is_pytorchs(library: ctypes.CDLL) -> bool:
    """Whether PyTorch uses this OpenMP library: its thread count follows the library's."""
    before = library.omp_get_max_threads()
    library.omp_set_num_threads(before + 1)
    try:
        return torch.get_num_threads() == before + 1
    finally:
        library.omp_set_num_threads(before)


@cache
def _pauses() -> tuple[Callable[[int], int], ...]:
    """``omp_pause_resource_all`` of each OpenMP library that this process has loaded; none where
    the libraries are unknown, or older than OpenMP 5.0."""
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
    """The paths of the OpenMP libraries that a process has loaded."""
    try:
        with open(f"/proc/{process}/maps", encoding="utf-8") as file:
            mapped = file.read()
    except OSError:  # not Linux
        return []
    return list(dict.fromkeys(re.findall(r"(/\S*/lib(?:gomp|omp|iomp5)[^/\s]*\.so\S*)", mapped)))


def _may_lack_threads() -> bool:
    """Whether this process was forked by one that had an OpenMP library and had not yet imported
    minidnn: OpenMP may then count on threads of the main thread that do not exist."""
    if imported_by != os.getpid():
        return False  # minidnn was imported before the fork, and ended them
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:
            _, parent, *_, flags = file.read().rpartition(")")[2].split()[:7]
        if not int(flags) & _FORKED:
            return False
        # An orphan may have had a parent with such a library.
        known = os.path.samefile(f"/proc/{parent}/exe", "/proc/self/exe")
    except OSError:
        return os.path.exists("/proc/self/stat")
    return not known or bool(_loaded(parent))


#: Linux's PF_FORKNOEXEC: the process is a copy of its parent and runs no program of its own.
_FORKED = 0x40
#: The thread that may have lost its OpenMP threads in a fork, if any.
_thread_without_pool = threading.main_thread().ident if _may_lack_threads() else None
