"""What a printer gives and a program launches: the text of a kernel and how it is started."""

from __future__ import annotations

from dataclasses import dataclass

from ...kernels.ir import Kernel
from ...kernels.render.cuda import THREADS, render
from ...kernels.schedule import AxisSchedule
from ..codegen.code import Code
from ..codegen.kernel import KernelSource

#: What kernels that are described once for all engines are here.
SCHEDULE = AxisSchedule(points=1 << 17, widest=16)
#: The same where a new size must compile nothing.
ANY_SIZE = AxisSchedule(keeps_sizes=True, keeps_ones=True)


@dataclass(frozen=True)
class Launch:
    """A kernel and its launch: blocks, threads a block, and bytes of dynamic shared memory.

    Arguments are pointers, in the order that the printer states, then ``numbers``: sizes, as far as
    they do not stand in the text.
    More than 48 KiB of ``shared_bytes`` must be allowed to the function first
    (``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``).
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
        """A launch of a kernel named after its text, in which ``@`` stands for the name."""
        source = KernelSource.named(kind, str(code))
        return cls(source, (blocks, 1, 1), (threads, 1, 1), shared_bytes)

    @classmethod
    def of(cls, kernel: Kernel) -> Launch:
        """A launch of a kernel that is described once for all engines."""
        grid = -(-kernel.tasks // THREADS), 1, 1
        numbers = (*kernel.sizes.values(), kernel.tasks) if kernel.sizes else ()
        return cls(render(kernel), grid, (THREADS, 1, 1), 0, numbers)
