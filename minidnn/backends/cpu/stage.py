"""Kernels that run one after another for a node, and how rows of partial results are added.

A long row is cut into parts whose length follows from the shape alone: so threads share a row, and
the bits are the same whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..codegen.kernel import KernelSource
from .execution.buffers import Array


@dataclass(frozen=True)
class Workspace:
    """Memory that the stages of one node share, ``offset`` bytes from its start."""

    offset: int


#: What a kernel's pointer points to: a tensor by its number (the source, the further tensors, the
#: result), workspace, or a constant: packed weights, vectors or numbers (float32, one-dimensional).
#: Constants are functions, called when the program is built, since packing takes time.
Pointer = int | Workspace | Callable[[], Array]


@dataclass(frozen=True)
class Stage:
    """One kernel over its tasks.

    Attributes:
        tasks: how many tasks a run has; ``grain`` of them in one call are best.
        scratch_bytes: memory of a thread.
    """

    source: KernelSource
    pointers: tuple[Pointer, ...]
    tasks: int
    grain: int = 1
    scratch_bytes: int = 0


@dataclass(frozen=True)
class PrintedContraction:
    """A printed contraction.

    Attributes:
        algorithm: its name, "direct" or "F(4x4, 3x3)".
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
"""So many tasks keep all threads busy: then nothing is cut."""
_MOST_PARTS = 256
"""Joining the parts of a row takes little then."""


@dataclass(frozen=True)
class Staged:
    """The kernels of a node, and the bytes of the workspace that they share.

    Pointers of stages are operands by their number, the output behind them, and workspace.
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
    """A stage of a kernel whose last pointer are its sizes; ``work`` elements make a task."""
    grain = max(1, min((1 << 12) // max(1, work), tasks // 8))
    return Stage(source, (*pointers, lambda: np.array(sizes, np.int64)), tasks, grain)


def parts_of(length: int, width: int, tasks: int, multiple: int = 1) -> int:
    """The length of the parts that a row of ``length`` is cut into: all of it, or a multiple.

    Args:
        width: elements at each position of the row that a task computes.
        tasks: how many tasks there are if nothing is cut.
        multiple: what parts are multiples of.
    """
    if tasks >= _ENOUGH_TASKS or length * width < 2 * PART:
        return max(length, 1)
    part = max(PART // width, -(-length // _MOST_PARTS), 16)
    return -(-part // multiple) * multiple


#: Blocks are joined 16 at a time, these again, and so on, so that errors grow with the number of
#: levels only. ``@_push`` adds the count-th block, ``@_rest`` joins what is left with ``c``.
CASCADE = """\
static inline void @_push(varying {wide} * uniform levels, uniform int64 count, {wide} given) {{
  {wide} a = given;
  uniform int l = 0;
  for (uniform int64 k = count; ; k /= 16) {{
    if (k % 16 != 1) {{
      const {wide} c = levels[l];
      a = {join};
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
      c = {join};
    }}
    l++;
  }}
  return c;
}}
"""
LEVELS = 12
"""Enough for 16 ** 12 blocks."""
