"""Kernels that are described once for all engines, as this one runs them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....kernels.ir import Kernel
from ....kernels.render.ispc import render
from ....kernels.schedule import AxisSchedule
from ...codegen.kernel import KernelSource

#: Elements of a row that one task computes, and elements that are worth a call.
CHUNK = 1 << 13
WORTH = 1 << 12

SCHEDULE = AxisSchedule(lanes=2, chunk=CHUNK, keeps_sizes=True)


@dataclass(frozen=True)
class Shaped:
    """A kernel without sizes, the sizes for it (its last operand, int64), its tasks, and the
    tables that it reads, which are operands before the output."""

    source: KernelSource
    sizes: np.ndarray
    tasks: int
    grain: int = 1
    tables: tuple[np.ndarray, ...] = ()


def shaped(kernel: Kernel) -> Shaped:
    """The kernel as text, with its sizes, and as many tasks a call as are worth one."""
    grain = max(1, min(WORTH // max(kernel.work, 1), kernel.tasks // 8))
    sizes = np.array([*kernel.sizes.values()] or [0], np.int64)
    return Shaped(render(kernel), sizes, kernel.tasks, grain, kernel.tables)
