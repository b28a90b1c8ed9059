"""Stages: kernels that run one after another for a node; and how long reductions are split.

A long row is split into parts whose length follows from the shape alone: so threads share a row,
and the bits of a reduction are the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..codegen.kernel import KernelSource
from .execution.buffers import Array


@dataclass(frozen=True)
class Workspace:
    """A pointer into memory that the stages of one node share, ``offset`` bytes from its start."""

    offset: int


#: What a kernel's pointer points to: a tensor by its number (the source, the further tensors, the
#: result), workspace, or a constant, which is a one-dimensional array of packed weights, vectors or
#: numbers.  Constants are functions, called when the program is built, since packing takes time.
Pointer = int | Workspace | Callable[[], Array]


@dataclass(frozen=True)
class Stage:
    """One launch of a kernel.

    Attributes:
        tasks: the number of independent tasks, which threads share.
        grain: how many tasks are best computed in one call.
        scratch_bytes: scratch memory of each thread.
    """

    source: KernelSource
    pointers: tuple[Pointer, ...]
    tasks: int
    grain: int = 1
    scratch_bytes: int = 0


@dataclass(frozen=True)
class PrintedContraction:
    """The printed kernels of a contraction.

    Attributes:
        algorithm: the algorithm's name, such as "direct" or "F(4x4, 3x3)".
        workspace_bytes: memory that the stages share.
    """

    algorithm: str
    stages: tuple[Stage, ...]
    workspace_bytes: int = 0

    @property
    def constants(self) -> tuple[Callable[[], Array], ...]:
        """The constants of all stages."""
        pointers = (p for stage in self.stages for p in stage.pointers)
        return tuple(p for p in pointers if callable(p))


PART = 1 << 14
"""Elements that are worth a task of their own."""
_ENOUGH_TASKS = 64
"""So many tasks keep all threads busy: then no row is split."""
_MOST_PARTS = 256
"""The most parts of a row: combining so many takes little time."""


@dataclass(frozen=True)
class Staged:
    """The kernels of a node, and the bytes of the workspace that they share.

    Pointers of stages are numbers (of the operands, then of the output) and workspace.
    """

    stages: tuple[Stage, ...]
    workspace_bytes: int = 0


def stage(
    source: KernelSource,
    pointers: tuple[int | Workspace, ...],
    sizes: list[int],
    tasks: int,
    work: int,
) -> Stage:
    """A stage of a kernel whose last operand is its sizes; a task computes ``work`` elements."""
    grain = max(1, min((1 << 12) // max(1, work), tasks // 8))
    return Stage(source, (*pointers, lambda: np.array(sizes, np.int64)), tasks, grain)


def parts_of(length: int, width: int, tasks: int, multiple: int = 1) -> int:
    """The length of the parts of a row of ``length``: all of it, or a multiple of ``multiple``.

    Args:
        width: elements at each position of the row that a task computes.
        tasks: how many tasks there are if no row is split.
        multiple: what the length of parts is a multiple of.
    """
    if tasks >= _ENOUGH_TASKS or length * width < 2 * PART:
        return max(length, 1)
    part = max(PART // width, -(-length // _MOST_PARTS), 16)
    return -(-part // multiple) * multiple


#: A cascade of partial results: those of 16 blocks are combined, 16 of these again, and so on, so
#: that rounding errors grow only with the number of levels. ``@_push`` combines the result of the
#: count-th block, ``@_rest`` what is left in all levels, and ``given``.
CASCADE = """\
static inline void @_push(varying {wide} * uniform levels, uniform int64 count, {wide} given) {{
  {wide} a = given;
  uniform int l = 0;
  for (uniform int64 k = count; ; k /= 16) {{
    if (k % 16 != 1) {{
      const {wide} c = levels[l];
      a = {combine};
    }}
    levels[l] = a;
    l++;
    if (k % 16 != 0) return;
  }}
}}
static inline {wide} @_rest(varying {wide} * uniform levels, uniform int64 count, {wide} given) {{
  {wide} c = given;
  uniform int l = 0;
  for (uniform int64 k = count; k > 0; k /= 16) {{
    if (k % 16 != 0) {{
      const {wide} a = levels[l];
      c = {combine};
    }}
    l++;
  }}
  return c;
}}
"""
LEVELS = 12
"""Levels of a cascade: enough for 16 ** 12 blocks."""
