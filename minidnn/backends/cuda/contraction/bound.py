"""The least time that a form of a contraction can take, by the bytes that its kernels move."""

from __future__ import annotations

from math import prod

from ....graph.types import ITEMSIZE
from ..machine import Machine
from ..tensor import Tensor
from .problem import ContractionProblem
from .recipe import Form, sums_of, used

_CACHED = 3.0
"""How many times the memory's rate the last cache gives at most; 2 to 2.5 were seen on an H200."""


def least_milliseconds(problem: ContractionProblem, form: Form, machine: Machine) -> float:
    """Each kernel of the form reads and writes each of its tensors once at least."""
    batch = problem.batch
    x, y = _bytes(problem.x, batch), _bytes(problem.y, batch)
    others = [_bytes(t, batch) for t in problem.others]
    seconds = 0.0
    if problem.gather is not None or (problem.before and form.kernel is None):
        prepared = _bytes(problem.gathered, batch)
        seconds += _seconds(machine, x + prepared)
        x = prepared
    read = [stage.index for stage in problem.stages[: form.stages] if stage.mode == "add"]
    weights = prod(problem.w.shape) * ITEMSIZE[problem.w.dtype]
    seconds += _seconds(machine, x + weights + y + sum(others[i] for i in read))
    if problem.front is not None:
        read_before = sum(_bytes(t, batch) for t in problem.front.tensors)
        seconds += _seconds(machine, read_before if form.front else read_before + y)
    if form.packed or form.stages < len(problem.stages):
        left, _, _ = used(problem, form.stages)
        seconds += _seconds(machine, 2 * y + sum(others[i] for i in left))
    if sums_of(problem, form):
        seconds += _seconds(machine, _bytes(problem.made, batch))
    return 1e3 * seconds


def _seconds(machine: Machine, bytes: int) -> float:
    """The least time to move that much, which may lie in the cache where it is small."""
    return bytes / (machine.bandwidth * (_CACHED if bytes < machine.cache_bytes else 1.0))


def _bytes(t: Tensor, batch: int) -> int:
    return batch * t.channels * t.rows * t.columns * t.itemsize
