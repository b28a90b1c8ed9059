"""The least time that a form of a contraction can take, by the bytes that its kernels move."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....graph.types import ITEMSIZE
from ..tensor import Tensor
from .problem import ContractionProblem
from .recipe import Form, used

_CACHED = 3.0
"""How many times the memory's rate the last cache gives at most; 2 to 2.5 were seen on an H200."""


@dataclass(frozen=True)
class MemoryRate:
    """Bytes a second to and from the device's memory, and bytes of its last cache."""

    bandwidth: float
    cache: int

    def seconds(self, bytes: int) -> float:
        """The least time to move that much, which may lie in the cache where it is small."""
        rate = self.bandwidth * (_CACHED if bytes < self.cache else 1.0)
        return bytes / rate


def least_milliseconds(problem: ContractionProblem, form: Form, memory: MemoryRate) -> float:
    """Each kernel of the form reads and writes each of its tensors once at least."""
    batch = problem.batch
    x, y = _bytes(problem.x, batch), _bytes(problem.y, batch)
    others = [_bytes(t, batch) for t in problem.others]
    seconds = 0.0
    if problem.gather is not None or (problem.before and form.kernel is None):
        prepared = _bytes(problem.gathered, batch)
        seconds += memory.seconds(x + prepared)
        x = prepared
    read = [stage.index for stage in problem.stages[: form.stages] if stage.mode == "add"]
    weights = prod(problem.w.shape) * ITEMSIZE[problem.w.dtype]
    seconds += memory.seconds(x + weights + y + sum(others[i] for i in read))
    if form.packed or form.stages < len(problem.stages):
        left, _, _ = used(problem, form.stages)
        seconds += memory.seconds(2 * y + sum(others[i] for i in left))
    return 1e3 * seconds


def _bytes(t: Tensor, batch: int) -> int:
    return batch * t.channels * t.rows * t.columns * t.itemsize
