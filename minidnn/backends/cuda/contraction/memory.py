"""Scratch tensors in device memory, on which executables are timed or tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ....cudnn.graph import arrays
from ....cudnn.graph.spec import TensorSpec
from ....graph.types import ITEMSIZE
from ..memory import with_room
from .epilogue_reduction import EpilogueReduction
from .int8_filter import header_bytes
from .problem import Addresses, ContractionProblem, spec_of
from .producer import Producer


def scratch_addresses(
    problem: ContractionProblem, workspace: int, timed: bool = True
) -> tuple[Addresses, int, Any]:
    """Allocates a problem's tensors and a workspace; returns their addresses, and what keeps the
    memory alive.

    Tensors that are ``timed`` hold random numbers, as timings on zeros mislead; others stay
    uninitialized.

    OutOfMemoryError if they do not fit into the free memory.
    """
    what = f"the tensors of a timing with {workspace} bytes of workspace"
    return with_room(lambda: _scratch(problem, workspace, timed), what)


def _scratch(
    problem: ContractionProblem, workspace: int, timed: bool
) -> tuple[Addresses, int, Any]:
    kept: list[Any] = []

    def tensor(spec: TensorSpec, offset: int) -> int:
        flat = TensorSpec((spec.span + offset,), (1,), spec.dtype)
        size = flat.span * ITEMSIZE[flat.dtype]
        array = arrays.random_like(flat, seed=len(kept)) if timed else arrays.allocate(size)
        kept.append(array)
        return int(array.ptr)

    batch = problem.batch
    at = Addresses(
        tensor(spec_of(problem.x, batch), problem.x.offset),
        tensor(problem.w, header_bytes(problem) if problem.is_integer else 0),
        tensor(problem.output, problem.y.offset),
        tuple(tensor(spec_of(t, batch), t.offset) for t in problem.others),
        tuple(tensor(_vector(problem.w.shape[0], dtype), 0) for dtype in problem.vectors),
        tuple(tensor(_vector(problem.x.channels, dtype), 0) for dtype in problem.before_vectors),
    )
    if problem.reduction is not None:
        at = replace(at, reduction=_behind(problem, problem.reduction, tensor))
    if problem.producer is not None:
        at = replace(at, producer=_front(problem, problem.producer, tensor))
    workspace_memory = arrays.allocate(workspace) if workspace else None
    kept.append(workspace_memory)
    return at, 0 if workspace_memory is None else int(workspace_memory.ptr), kept


def _behind(
    problem: ContractionProblem,
    reduction: EpilogueReduction,
    tensor: Callable[[TensorSpec, int], int],
) -> tuple[int, ...]:
    """Of the epilogue reduction: what it reads, what it stores, and the sums."""
    channels = problem.made.channels
    vectors = [_vector(channels, dtype) for dtype in reduction.vectors]
    sums = [_vector(channels, "float32")] * (len(reduction.results) - len(reduction.stored))
    return (
        *(tensor(spec_of(t, problem.batch), t.offset) for t in reduction.tensors),
        *(tensor(vector, 0) for vector in vectors),
        *(tensor(spec_of(t, problem.batch), t.offset) for t in reduction.stored),
        *(tensor(total, 0) for total in sums),
    )


def _front(
    problem: ContractionProblem, producer: Producer, tensor: Callable[[TensorSpec, int], int]
) -> tuple[int, ...]:
    """The operands of a gradient's producer, tensors first."""
    return (
        *(tensor(spec_of(t, problem.batch), t.offset) for t in producer.tensors),
        *(tensor(_vector(problem.y.channels, dtype), 0) for dtype in producer.vectors),
    )


def _vector(channels: int, dtype: str) -> TensorSpec:
    return TensorSpec((channels,), (1,), dtype)
