"""Memory on the device: how it is asked for, and what is done when there is no more."""

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
"""Bytes of what is free that nobody plans to take: allocations are rounded up, by 2 MiB each, and
CUDA itself needs some for kernels and graphs."""
ALIGNMENT = 256
"""Bytes that places in an allocation are multiples of, as CUDA's own allocations are."""
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY
_CUDNN_FULL = (
    Status.CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
    # Formerly CUDNN_STATUS_ALLOC_FAILED, for what could not be allocated wherever.
    Status.CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
)
T = TypeVar("T")


class Shortage(OutOfMemoryError):
    """The device has no room, whatever limit was given."""


@dataclass(frozen=True)
class Limit:
    """Bytes that weights, values and workspaces of an instance may take together.

    ``said`` begins an error about it.  Where memory is ``short`` there is no room for anything
    beside them either, such as tensors to time algorithms with while the weights lie there.
    """

    bytes: int
    said: str
    short: bool = False


def aligned(size: int) -> int:
    """The multiple of :data:`ALIGNMENT` that many bytes are rounded up to.

    Example:
        >>> aligned(0), aligned(1), aligned(256)
        (0, 256, 256)
    """
    return -(-size // ALIGNMENT) * ALIGNMENT


def make_within(limit: Limit | None, make: Callable[[Limit | None], T]) -> T:
    """What ``make`` makes within a limit, or if the device's memory runs out meanwhile, within what
    is free then, which a MiniDNNWarning says.

    OutOfMemoryError if that does not suffice either; it keeps nothing alive that was made.
    """
    try:
        with told():
            return make(limit)
    except Shortage as error:
        short = str(error)
    least = _what_is_free(limit)  # when the error is gone, and what its frames held
    text = f"{short}; {least.said}, and algorithms are chosen again that fit there"
    log.warning(text)
    warnings.warn(text, MiniDNNWarning, stacklevel=2)
    try:
        with told():
            return make(least)
    except Shortage as error:
        short = f"{error}; {least.said}"
    except OutOfMemoryError as error:
        short = str(error)
    release_unused()
    raise OutOfMemoryError(short)


def _what_is_free(limit: Limit | None) -> Limit:
    """What may be taken of the current device's memory, where nothing is kept for later."""
    gc.collect()
    release_unused()
    cuda = cupy().cuda
    free = int(cuda.runtime.memGetInfo()[0])
    pool = cupy().get_default_memory_pool()
    if most := pool.get_limit():
        free = min(free, max(0, most - pool.total_bytes()))
    within = max(0, free - LEFT_FREE)
    if limit is not None:
        within = min(within, limit.bytes)
    where = f"cuda:{cuda.runtime.getDevice()}"
    return Limit(within, f"{where} has {free} bytes free, of which {within} may be taken", True)


def release_unused() -> None:
    """Gives CUDA back what CuPy's pool keeps for later."""
    cupy().get_default_memory_pool().free_all_blocks()


def allocated(size: int, what: str) -> Any:
    """Memory of the current device, its address ``.ptr``; Shortage names ``what`` it is for."""
    return with_room(lambda: cupy().cuda.alloc(max(1, size)), f"{size} bytes of {what}")


def with_room(make: Callable[[], T], what: str) -> T:
    """What ``make`` makes in CuPy's memory; Shortage if there is no room for ``what``.

    Under a limit of its own CuPy's pool does not look whether what it keeps for later would do.
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
    """Meanwhile it is a Shortage, too, when CUDA or cuDNN finds no memory for itself."""
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
