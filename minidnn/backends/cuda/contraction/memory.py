"""Device memory on which recipes are timed: random numbers, since timings on zeros lie."""

from __future__ import annotations

from typing import Any

from ....cudnn._cupy import cupy
from ....cudnn.graph import arrays
from ....cudnn.graph.spec import TensorSpec
from ....errors import OutOfMemoryError
from ....graph.types import ITEMSIZE
from .problem import ContractionProblem, spec_of
from .recipe import Addresses


def scratch_addresses(problem: ContractionProblem, workspace: int) -> tuple[Addresses, int, Any]:
    """Tensors of a problem and a workspace, and what keeps them alive.

    OutOfMemoryError if they do not fit into the free memory.
    """
    kept: list[Any] = []

    def tensor(spec: TensorSpec, offset: int) -> int:
        size = (spec.span + offset) * ITEMSIZE[spec.dtype]
        kept.append(_random(size, spec.dtype))
        return int(kept[-1].ptr)

    batch = problem.batch
    try:
        at = Addresses(
            tensor(spec_of(problem.x, batch), problem.x.offset),
            tensor(problem.w, 0),
            tensor(problem.output, problem.y.offset),
            tuple(tensor(spec_of(t, batch), t.offset) for t in problem.others),
            tuple(tensor(_vector(problem.w.shape[0], dtype), 0) for dtype in problem.vectors),
            tuple(
                tensor(_vector(problem.x.channels, dtype), 0) for dtype in problem.before_vectors
            ),
        )
        room = arrays.allocate(workspace) if workspace else None
    except cupy().cuda.memory.OutOfMemoryError as error:
        kept.clear()
        raise OutOfMemoryError(f"no memory to time with {workspace} bytes: {error}") from error
    kept.append(room)
    return at, 0 if room is None else int(room.ptr), kept


def _vector(channels: int, dtype: str) -> TensorSpec:
    return TensorSpec((channels,), (1,), dtype)


_BLOCK = 4 << 20


def _random(size: int, dtype: str) -> Any:
    """Memory of that many bytes, filled with a block of random numbers again and again."""
    itemsize = ITEMSIZE[dtype]
    count = max(1, min(size, _BLOCK) // itemsize)
    first = arrays.random_like(TensorSpec((count,), (1,), dtype), seed=0)
    memory = arrays.allocate(size)
    stream = cupy().cuda.get_current_stream()
    for begin in range(0, size, count * itemsize):
        length = min(count * itemsize, size - begin)
        (memory + begin).copy_from_device_async(first, length, stream)
    return memory
