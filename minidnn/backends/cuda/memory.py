"""Allocates device memory, and reports and handles its shortage.

Everything here allocates from CuPy's memory pool.  When the device is full, a program is prepared
again within a :class:`Limit`, with algorithms that need less workspace.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ...cudnn.enums import Status
from ...cudnn.errors import CuDNNError
from ...errors import MiniDNNError, MiniDNNWarning, OutOfMemoryError
from ...gpu import cupy

log = logging.getLogger(__name__)

LEFT_FREE = 16 << 20
"""Free bytes that a limit leaves out: allocations are rounded up, by 2 MiB each, and CUDA itself
needs memory for kernels and graphs."""
ALIGNMENT = 256
"""The alignment of offsets in an allocation, in bytes; CUDA's own allocations have it, too."""
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY
_CUDNN_FULL = (
    Status.CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
    # Formerly CUDNN_STATUS_ALLOC_FAILED, for failed allocations on the host or the device.
    Status.CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
)
T = TypeVar("T")


class Shortage(OutOfMemoryError):
    """The device's memory is full, whatever limit was given."""


@dataclass(frozen=True)
class Limit:
    """The memory that a program may take.

    Attributes:
        bytes: for weights, values and workspaces of an instance together.
        said: the beginning of error messages about the limit.
        short: whether the device has no room for anything else either, such as tensors for timing
            algorithms while the weights are allocated.
    """

    bytes: int
    said: str
    short: bool = False


def aligned(size: int) -> int:
    """Rounds a number of bytes up to a multiple of :data:`ALIGNMENT`.

    Example:
        >>> aligned(0), aligned(1), aligned(256)
        (0, 256, 256)
    """
    return -(-size // ALIGNMENT) * ALIGNMENT


def make_within(limit: Limit | None, make: Callable[[Limit | None], T]) -> T:
    """Returns what ``make`` returns for a limit.

    If the device's memory runs out, ``make`` is called once more, with the memory that is free then
    as its limit, and a MiniDNNWarning says so.  OutOfMemoryError if that does not suffice either;
    the error holds no references to what was made.
    """
    try:
        with told():
            return make(limit)
    except Shortage as error:
        short = str(error)
    free_limit = _what_is_free(limit)  # after the error, whose traceback kept memory alive
    text = f"{short}; {free_limit.said}, and algorithms are chosen again that fit there"
    log.warning(text)
    warnings.warn(text, MiniDNNWarning, stacklevel=2)
    try:
        with told():
            return make(free_limit)
    except Shortage as error:
        short = f"{error}; {free_limit.said}"
    except OutOfMemoryError as error:
        short = str(error)
    release_unused()
    raise OutOfMemoryError(short)


def _what_is_free(limit: Limit | None) -> Limit:
    """The limit that the current device's free memory sets, once caches have been emptied."""
    gc.collect()
    release_unused()
    cuda = cupy().cuda
    free = int(cuda.runtime.memGetInfo()[0])
    pool = cupy().get_default_memory_pool()
    if pool_limit := pool.get_limit():
        free = min(free, max(0, pool_limit - pool.total_bytes()))
    within = max(0, free - LEFT_FREE)
    if limit is not None:
        within = min(within, limit.bytes)
    where = f"cuda:{cuda.runtime.getDevice()}"
    return Limit(within, f"{where} has {free} bytes free, of which {within} may be taken", True)


def release_unused() -> None:
    """Returns the unused memory of CuPy's pool to CUDA."""
    cupy().get_default_memory_pool().free_all_blocks()


def allocated(size: int, what: str) -> Any:
    """Allocates ``size`` bytes on the current device and returns their owner, whose ``ptr`` is the
    address; a Shortage names ``what`` they are for."""
    return with_room(lambda: cupy().cuda.alloc(max(1, size)), f"{size} bytes of {what}")


def with_room(make: Callable[[], T], what: str) -> T:
    """Returns what ``make`` allocates in CuPy's pool; Shortage if there is no room for ``what``.

    If the pool is full, its unused blocks are freed and ``make`` is called once more: a pool with a
    limit does not do so itself.
    """
    full = cupy().cuda.memory.OutOfMemoryError
    try:
        return make()
    except full:
        pass
    release_unused()
    try:
        return make()
    except full as error:
        raise Shortage(f"no room for {what}: {error}") from error


@contextmanager
def told() -> Iterator[None]:
    """Within the context, raises a Shortage where CUDA or cuDNN fails to allocate memory for its
    own use."""
    try:
        yield
    except Exception as error:
        if not _is_shortage(error):
            raise
        raise Shortage(f"no room for what CUDA needs itself: {error}") from error


def _is_shortage(error: Exception) -> bool:
    if isinstance(error, MiniDNNError):
        return isinstance(error, CuDNNError) and error.status in _CUDNN_FULL
    cuda = cupy().cuda
    known = (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError)
    return isinstance(error, known) and error.status == _OUT_OF_MEMORY
