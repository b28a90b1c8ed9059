"""Gradients of the filters of depthwise convolutions, channels last, with split-K over the pixels.

A thread keeps the sums of one row of the filter for a few channels, so that it needs few registers
and has many pixels in flight.  A block goes over a part of all pixels; a second kernel adds the
partial sums in a fixed order, so that every run gives the same bits.

The least time is that of reading image and gradient once, or that of a multiply-add for each tap of
each element: on an H200 the latter counts from windows of 5 x 5 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from ....runtime.operand import KernelArgument
from ..kernels import Launch
from ..machine import Machine
from ..prelude import TYPES
from .depthwise import is_aligned
from .kernel import ContractionKernel
from .problem import FILTER_GRADIENT, Addresses, ContractionProblem
from .split_k import filter_part_bytes, print_filter_total, total_arguments
from .text import source_of, window_parts

_ACCESS = 16  # bytes
_CHANNELS = 64
"""Channels of a block, which are whole cache lines."""
_THREADS = 256
_BLOCKS = 2
"""Blocks that a multiprocessor runs at once."""
_WAVES = 2
"""Waves of blocks: how many times as many there are as run at once."""
_REGISTERS = 96
"""Registers for a thread's sums and for what it reads at once; it needs others beside these."""
_MEASURED = 3
_MOST = 1 << 31
_NAMES = ("packs", "units", "all", "across", "channels", "rows", "columns", "top", "left")
_STRIDES = ("height", "width", "image", "row", "pixel", "dy_image", "dy_row", "dy_pixel")


@dataclass(frozen=True)
class FilterUnit:
    """What a thread reads at once: columns of a row of dy, of ``lanes`` channels."""

    lanes: int
    columns: int

    def __str__(self) -> str:
        return f"by {self.columns} pixels of {self.lanes} channels"


UNITS = tuple(FilterUnit(*each) for each in product((8, 4, 2, 1), (7, 4, 8, 2, 1)))


class DepthwiseFilterKernel(ContractionKernel):
    """A row of the filter for each thread; a choice is an index of :data:`UNITS`."""

    name = "depthwise filter"
    directions = (FILTER_GRADIENT,)
    usual_price = 0.5

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if problem.w.shape[1] != 1 or problem.w.shape[0] != problem.x.channels:
            return "its groups have more than one channel"
        if problem.is_integer:
            return "it multiplies int8"
        if problem.planar or problem.x.channel != 1 or problem.y.channel != 1:
            return "its channels are not contiguous"
        reaches = (t.rows * t.row for t in (problem.x, problem.y))
        if max(*reaches, problem.batch * problem.y.rows * problem.y.columns) >= _MOST:
            return "its sizes do not fit 32-bit indices"
        return None if _possible(problem) else "its windows do not fit registers"

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        """The units with the most multiply-adds for what they read."""

        def read(choice: int) -> float:
            unit = UNITS[choice]
            return (_reach(problem, unit) + unit.columns) / min(unit.columns, problem.y.columns)

        return sorted(_possible(problem), key=read)[:_MEASURED]

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """The kernel of the partial sums, and the one that adds them up."""
        unit, window = UNITS[choice], problem.w.shape[2:]
        side, packs = _side_by_side(problem, unit), _packs(problem, unit)
        threads = packs * window[0] * side
        text = {
            "T": TYPES[problem.x.dtype],
            "THREADS": threads,
            "BLOCKS": max(1, min(_BLOCKS, 512 // threads)),
            "LANES": unit.lanes,
            "COLUMNS": unit.columns,
            "SIDE_BY_SIDE": side,
            **window_parts(problem),
            "PARAMETERS": ", ".join(f"const long long P_{name}" for name in (*_NAMES, *_STRIDES)),
        }
        source = source_of("depthwise_filter.cu", text)
        grid = (_parts(problem, unit, machine), _groups(problem, unit), 1)
        first = Launch(source, grid, (threads, 1, 1), threads * unit.lanes * 4)
        return [first, print_filter_total(problem)]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        numbers = self.numbers(problem, choice, machine)
        parts = _parts(problem, UNITS[choice], machine)
        y = at.y + problem.y.offset * problem.y.itemsize
        return [[at.x, y, at.workspace, *numbers], total_arguments(problem, at, parts)]

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        unit, x, y = UNITS[choice], problem.x, problem.y
        units = _count(problem, unit)
        return [
            *(_packs(problem, unit), -(-units // _parts(problem, unit, machine)), units),
            *(_across(problem, unit), y.channels, y.rows, y.columns),
            *(before for before, _ in problem.padding),
            *(x.rows, x.columns, x.image, x.row, x.pixel, y.image, y.row, y.pixel),
        ]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        return filter_part_bytes(problem, _parts(problem, UNITS[choice], machine))

    def shape(self, choice: int) -> object:
        return UNITS[choice]


def _possible(problem: ContractionProblem) -> list[int]:
    """The units that fit, of the two widest accesses for which any does."""
    fitting = [i for i, unit in enumerate(UNITS) if _fits(problem, unit)]
    lanes = sorted({UNITS[i].lanes for i in fitting}, reverse=True)[:2]
    return [i for i in fitting if UNITS[i].lanes in lanes]


def _fits(problem: ContractionProblem, unit: FilterUnit) -> bool:
    """Whether alignment, sizes, registers and threads of a block allow a unit."""
    (tall, wide), size = problem.w.shape[2:], problem.x.itemsize
    if unit.lanes * size > _ACCESS or problem.w.shape[0] % unit.lanes:
        return False
    for t in (problem.x, problem.y):
        if t.offset % unit.lanes or not is_aligned(t, problem.batch, unit.lanes):
            return False
    if unit.columns > 1 and unit.columns > problem.y.columns:
        return False
    read = (_reach(problem, unit) + unit.columns) * max(1, unit.lanes * size // 4)
    if (wide + 1) * unit.lanes + read > _REGISTERS:
        return False
    return tall * _packs(problem, unit) <= _THREADS


def _reach(problem: ContractionProblem, unit: FilterUnit) -> int:
    """Columns of x that a unit reads."""
    wide, stride, dilation = problem.w.shape[3], problem.stride[1], problem.dilation[1]
    return (unit.columns - 1) * stride + (wide - 1) * dilation + 1


def _groups(problem: ContractionProblem, unit: FilterUnit) -> int:
    """Groups of channels: one for each block along y."""
    return -(-problem.w.shape[0] // max(_CHANNELS, unit.lanes))


def _packs(problem: ContractionProblem, unit: FilterUnit) -> int:
    """Packs of ``lanes`` channels that a block has: about equally many in each block."""
    return -(-(problem.w.shape[0] // unit.lanes) // _groups(problem, unit))


def _side_by_side(problem: ContractionProblem, unit: FilterUnit) -> int:
    """Units that a block reads at once."""
    return max(1, _THREADS // (_packs(problem, unit) * problem.w.shape[2]))


def _across(problem: ContractionProblem, unit: FilterUnit) -> int:
    """Units of a row of dy."""
    return -(-problem.y.columns // unit.columns)


def _count(problem: ContractionProblem, unit: FilterUnit) -> int:
    """Units of a channel, in all images."""
    return problem.batch * problem.y.rows * _across(problem, unit)


def _parts(problem: ContractionProblem, unit: FilterUnit, machine: Machine) -> int:
    """Into how many parts the pixels are split: enough to fill all waves, but none without work."""
    room = _WAVES * _BLOCKS * machine.multiprocessors
    wanted = -(-room // _groups(problem, unit))
    side = _side_by_side(problem, unit)
    return max(1, min(wanted, -(-_count(problem, unit) // side)))
