"""Scratch tensors in device memory, on which executables are timed or tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....cudnn.graph import arrays
from ....cudnn.graph.spec import TensorSpec
from ....graph.types import ITEMSIZE
from ..memory import with_room
from ..tensor import Tensor
from .int8_filter import header_bytes
from .problem import Addresses, ContractionProblem, spec_of


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

    def images(layouts: Sequence[Tensor]) -> tuple[int, ...]:
        return tuple(tensor(spec_of(t, batch), t.offset) for t in layouts)

    def vectors(channels: int, dtypes: Sequence[str]) -> tuple[int, ...]:
        return tuple(tensor(TensorSpec((channels,), (1,), dtype), 0) for dtype in dtypes)

    batch = problem.batch
    at = Addresses(
        tensor(spec_of(problem.x, batch), problem.x.offset),
        tensor(problem.w, header_bytes(problem) if problem.is_integer else 0),
        tensor(problem.output, problem.y.offset),
        images(problem.others),
        vectors(problem.w.shape[0], problem.vectors),
        vectors(problem.x.channels, problem.before_vectors),
    )
    if (reduction := problem.reduction) is not None:
        channels = problem.made.channels
        sums = ["float32"] * (len(reduction.results) - len(reduction.stored))
        read = *images(reduction.tensors), *vectors(channels, reduction.vectors)
        written = *images(reduction.stored), *vectors(channels, sums)
        at = replace(at, reduction=(*read, *written))
    if (producer := problem.producer) is not None:
        operands = *images(producer.tensors), *vectors(problem.y.channels, producer.vectors)
        at = replace(at, producer=operands)
    workspace_memory = arrays.allocate(workspace) if workspace else None
    kept.append(workspace_memory)
    return at, 0 if workspace_memory is None else int(workspace_memory.ptr), kept
