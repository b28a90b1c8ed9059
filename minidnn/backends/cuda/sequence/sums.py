"""Sums and variances of planes that a sequence computes on the way: which sequences can add them
up, those whose planes stay in registers, and how they are printed over the rectangles that threads
have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minidnn._cached_property import cached_property

from ....fusion.plan import KernelPlan
from ....fusion.region import FusedSequence
from ....graph.ir import Constant
from ....graph.layout import PLANAR
from ....graph.types import TensorType
from ...codegen.code import Code
from ...codegen.dialect import literal
from ..partial_sums import LARGEST
from ..tensor import tensor_of
from .grid import MOST_RESIDENT, Grid, grids, live_planes, shared_bytes

LEAST = 4
"""Elements of a large plane that a thread has at least; with fewer, edges cost more than sums
save."""


def choose_sums(region: FusedSequence, shared: int) -> Grid | None:
    """Returns the grid of a sequence with values in NCHW that adds up planes, if ``shared`` bytes
    of shared memory are enough for it; None if it had better not add them up."""
    plan, binding = region.kernel
    if any(isinstance(slot.value, Constant) for slot in binding.slots):
        return None
    sums = {region.body.outputs[number] for number in region.summed}
    types = [
        TensorType((*s.value.type.plane[:2], 1, 1)) if s.value in sums else s.value.type
        for s in binding.slots
    ]
    grid = next(iter(grids(plan, binding, [tensor_of(type, PLANAR) for type in types])), None)
    if grid is None or live_planes(plan) * LEAST > MOST_RESIDENT:
        return None
    return grid if shared_bytes(plan, grid) <= shared else None


@dataclass(frozen=True)
class PlaneSums:
    """Prints the sums of planes.  A thread accumulates ``sum``; of a variance the distances from
    its ``first`` element, and their ``squares``.

    Attributes:
        barrier: the statement.
        numbers: of the planes.
    """

    code: Code
    plan: KernelPlan
    grid: Grid
    barrier: str
    numbers: tuple[int, ...]

    @cached_property
    def _spread(self) -> list[int]:
        """The planes whose variance is wanted."""
        planes = self.plan.planes
        return [n for n in self.numbers if planes[n].output in self.plan.spread]

    def declare(self) -> None:
        """Declares the accumulators of a thread."""
        for n in self.numbers:
            self.code.line(f"float sum{n} = 0.0f;")
        for n in self._spread:
            self.code.line(f"float first{n} = 0.0f, squares{n} = 0.0f;")

    def write(self, types: Sequence[str]) -> None:
        """Reduces the accumulators of a block's threads, and writes the result of each plane.

        Of a variance that is first the sum, which gives the mean, and then the squares of distances
        from that.

        Args:
            types: of the elements that are written, by outputs.
        """
        code, spread, stride = self.code, self._spread, self.grid.threads
        height, width = self.plan.anchor
        size = literal(float(height * width))
        if spread:
            rows = f"min({self.grid.rows}, {height} - y)"
            some = f"{rows} * min({self.grid.columns}, {width} - x)"
            code.line(f"const float many = thread < {self.grid.used} ? (float)({some}) : 0.0f;")
        for n in spread:
            code.line(f"const float mean{n} = sum{n} / max(many, 1.0f);")
            code.line(f"float apart{n} = squares{n} - sum{n} * mean{n};")
            code.line(f"if (apart{n} < 0.0f) apart{n} = 0.0f;")  # by rounding
            code.line(f"if (squares{n} > {LARGEST}) apart{n} = squares{n};")  # it is infinite
            code.line(f"sum{n} = many * (first{n} + mean{n});")
        code.line(self.barrier)
        code.line("float *const sums = (float *)md_shared;")
        self._add_up([f"sum{n}" for n in self.numbers])
        for i, n in enumerate(self.numbers):
            if n not in spread:
                self._write(n, f"sums[{i * stride}]", i, types)
        if not spread:
            return
        for n in spread:
            total = f"sums[{self.numbers.index(n) * stride}] / {size}"
            code.line(f"const float off{n} = first{n} + mean{n} - {total};")
        code.line(self.barrier)
        self._add_up([f"apart{n} + many * off{n} * off{n}" for n in spread])
        for i, n in enumerate(spread):
            self._write(n, f"sums[{i * stride}] / {size}", i, types)

    def _add_up(self, own: Sequence[str]) -> None:
        """Reduces values that each thread has, halving the number of threads from level to level;
        the sums are ``threads`` elements apart in shared memory."""
        code, threads, used = self.code, self.grid.threads, self.grid.used
        for i, number in enumerate(own):
            text = number if used == threads else f"thread < {used} ? {number} : 0.0f"
            code.line(f"sums[{i * threads} + thread] = {text};")
        code.line(self.barrier)
        half = 1 << (threads - 1).bit_length() - 1
        while half:
            with code.block(f"if (thread < {half} && thread + {half} < {threads})"):
                for i in range(len(own)):
                    at = f"sums[{i * threads} + thread"
                    code.line(f"{at}] += {at} + {half}];")
            code.line(self.barrier)
            half //= 2

    def _write(self, number: int, text: str, thread: int, types: Sequence[str]) -> None:
        """Writes a plane's result, by one thread."""
        output = self.plan.planes[number].output
        assert output is not None
        code = self.code
        code.line(f"if (thread == {thread}) *t{number} = md_as<{types[output]}>({text});")
