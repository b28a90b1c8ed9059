"""Kernel launches as plain data: printers return them, programs compile, load and launch them."""

from __future__ import annotations

from dataclasses import dataclass

from ...kernels.ir import Kernel
from ...kernels.render.cuda import THREADS, render
from ...kernels.schedule import AxisSchedule
from ..codegen.code import Code
from ..codegen.kernel import KernelSource

#: The schedule of kernels in the engines' common kernel IR (:mod:`minidnn.kernels`) on a GPU.
SCHEDULE = AxisSchedule(points=1 << 17, widest=16)
#: The schedule for kernels that take sizes as arguments, so that a new size compiles nothing.
ANY_SIZE = AxisSchedule(keeps_sizes=True, keeps_unit_sizes=True)


@dataclass(frozen=True)
class Launch:
    """A kernel and its launch configuration.

    The kernel's arguments are pointers, in the order that its printer states, then ``numbers``.

    Attributes:
        source: the kernel's text.
        grid: blocks along x, y and z.
        block: threads of a block along x, y and z.
        shared_bytes: dynamic shared memory of a block.  More than 48 KiB must be allowed to the
            function first (``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``).
        numbers: sizes that are arguments, as the text does not contain them.
    """

    source: KernelSource
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    numbers: tuple[int, ...] = ()

    @classmethod
    def named(
        cls, kind: str, code: Code, blocks: int, threads: int, shared_bytes: int = 0
    ) -> Launch:
        """Returns a launch of a kernel named after its text, in which ``@`` stands for the name, on
        a one-dimensional grid."""
        source = KernelSource.named(kind, str(code))
        return cls(source, (blocks, 1, 1), (threads, 1, 1), shared_bytes)

    @classmethod
    def of(cls, kernel: Kernel) -> Launch:
        """Returns a launch of a kernel of the engines' common kernel IR."""
        grid = -(-kernel.tasks // THREADS), 1, 1
        numbers = (*kernel.sizes.values(), kernel.tasks) if kernel.sizes else ()
        return cls(render(kernel), grid, (THREADS, 1, 1), 0, numbers)
