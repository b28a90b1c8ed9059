"""Gradients of the filters of depthwise convolutions in NCHW and float32, with split-K over pixels.

As in :mod:`.depthwise_nchw` a thread takes some rows of a column, and neighbours share what they
read. It keeps a sum for each tap, over many such units.  A block takes one channel and a part of
the units of all images, and reduces its threads' sums in a tree.  A second kernel adds the partial
sums in a fixed order, so that every run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ....runtime.operand import KernelArgument
from ..kernels import Launch
from ..machine import Machine
from .depthwise_nchw import patch_of, why_not_depthwise_nchw
from .kernel import ContractionKernel
from .problem import FILTER_GRADIENT, Addresses, ContractionProblem
from .split_k import (
    MOST_DOWN,
    Divisions,
    filled,
    filter_arguments,
    filter_part_bytes,
    print_filter_total,
)
from .text import source_of, window_parts

ROWS = (1, 2, 4, 7, 8)
DIVISIONS = Divisions(ROWS)
"""The choices: the rows of a thread's unit, and the number of parts."""
_REGISTERS = 80
_SIDE_BY_SIDE = ((32, 4), (56, 2), (_REGISTERS, 1))
"""Registers for sums, a column and a row, and how many blocks a multiprocessor has with so many."""
_FURTHEST = 48
"""Rows that a unit reads."""
_THREADS = 256
_NAMES = ("units", "all", "across", "down", "channels", "rows", "top", "left", "height", "width")
_STRIDES = ("image", "channel", "row", "dy_image", "dy_channel", "dy_row")


class DepthwiseNchwFilterKernel(ContractionKernel):
    """A channel and a part of the units for each block; a choice is one of :data:`DIVISIONS`."""

    name = "depthwise NCHW filter"
    directions = (FILTER_GRADIENT,)
    usual_price = 0.5

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        reason = why_not_depthwise_nchw(problem)
        if reason is not None:
            return reason
        return None if possible(problem) else "its windows do not fit registers"

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return DIVISIONS.promising(_priced(problem, machine))

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """The kernel of the partial sums, and the one that adds them up if there are several."""
        rows, parts = DIVISIONS[choice]
        window = problem.w.shape[2:]
        text = {
            "THREADS": _THREADS,
            "BLOCKS": _together(problem, rows),
            "ROWS": rows,
            "TALL": _tall(problem, rows),
            **window_parts(problem),
            "PARAMETERS": ", ".join(f"const long long P_{name}" for name in (*_NAMES, *_STRIDES)),
        }
        shared = _THREADS // 32 * prod(window) * 4
        grid = (problem.w.shape[0], parts, 1)
        first = Launch(source_of("depthwise_nchw_filter.cu", text), grid, (_THREADS, 1, 1), shared)
        return [first] if parts == 1 else [first, print_filter_total(problem)]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        _, parts = DIVISIONS[choice]
        return filter_arguments(problem, at, parts, self.numbers(problem, choice, machine))

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        rows, parts = DIVISIONS[choice]
        x, y = problem.x, problem.y
        units = _units(problem, rows)
        return [
            *(-(-units // parts), units, y.columns, -(-y.rows // rows), y.channels, y.rows),
            *(before for before, _ in problem.padding),
            *(x.rows, x.columns, x.image, x.channel, x.row, y.image, y.channel, y.row),
        ]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        _, parts = DIVISIONS[choice]
        return filter_part_bytes(problem, parts) if parts > 1 else 0

    def shape(self, choice: int) -> str:
        rows, parts = DIVISIONS[choice]
        return f"of {rows} rows" + (f" in {parts} parts" if parts > 1 else "")


def _units(problem: ContractionProblem, rows: int) -> int:
    """Units of a channel, in all images."""
    return problem.batch * problem.y.columns * -(-problem.y.rows // rows)


def _tall(problem: ContractionProblem, rows: int) -> int:
    """Rows of the image that a unit reads."""
    window, stride, dilation = problem.w.shape[2], problem.stride[0], problem.dilation[0]
    return patch_of(rows, window, stride, dilation, 0, False).read


def _registers(problem: ContractionProblem, rows: int) -> int:
    """Registers of a thread for its sums, a column of dy and a row of the image."""
    return prod(problem.w.shape[2:]) + rows + problem.w.shape[3]


def _together(problem: ContractionProblem, rows: int) -> int:
    """Blocks that a multiprocessor runs at once."""
    registers = _registers(problem, rows)
    return next(blocks for most, blocks in _SIDE_BY_SIDE if registers <= most)


def possible(problem: ContractionProblem) -> list[int]:
    """The rows of units that fit, none larger than the plane needs."""
    return [
        rows
        for i, rows in enumerate(ROWS)
        if (i == 0 or problem.y.rows > ROWS[i - 1])
        and _registers(problem, rows) <= _REGISTERS
        and _tall(problem, rows) <= _FURTHEST
    ]


def _priced(problem: ContractionProblem, machine: Machine) -> Iterator[tuple[float, int]]:
    """Estimates the instructions of a multiprocessor's threads for each choice."""
    channels, taps = problem.w.shape[0], prod(problem.w.shape[2:])
    for rows in possible(problem):
        units = _units(problem, rows)
        unit_work = 50 + 2 * rows + 2 * _tall(problem, rows) * problem.w.shape[3] + taps * rows
        blocks_at_once = _together(problem, rows)
        for waves in (1, 2, 4):
            wanted = max(1, waves * blocks_at_once * machine.multiprocessors // channels)
            parts = filled(units, min(wanted, -(-units // _THREADS), MOST_DOWN))
            part_units = -(-units // parts)
            rounds = -(-part_units // _THREADS)
            blocks = -(-channels * parts // (blocks_at_once * machine.multiprocessors))
            cost = blocks * (rounds * unit_work + 600 + 15 * taps) * blocks_at_once
            yield cost + (1000 * (parts > 1)), DIVISIONS.number(ROWS.index(rows), parts)
