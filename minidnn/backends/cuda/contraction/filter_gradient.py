"""Gradients of filters in exact float32 as implicit matrix products; K is the pixels of all images.

The result is small and K is long, so K is split: each block adds up one part of the pixels into the
workspace, and a second kernel adds the partial sums in a fixed order, so that every run gives the
same bits.

The least time is that of reading image and gradient once, or that of the products where filters and
taps are many.  Blocks make tiles of filters by taps of channels, or of taps by filters, whichever
leaves fewer of a tile's sums unused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ....runtime.operand import KernelArgument
from ..kernels import Launch
from ..machine import Machine
from ..tensor import has_contiguous_channels
from .kernel import ContractionKernel
from .problem import FILTER_GRADIENT, Addresses, ContractionProblem
from .split_k import (
    MOST_DOWN,
    Divisions,
    filled,
    filter_arguments,
    filter_part_bytes,
    pixels_of,
    print_filter_total,
)
from .text import source_of, template

_DEEP = 16
"""K of a slab: pixels."""
_LEAST_SLABS = 4
"""Slabs of a part, at least, so that filling the pipeline is not most of its work."""
_THREADS = 512
"""Threads of a multiprocessor, at 128 registers each."""
_MOST_PIXELS = 1 << 30
_MOST_REACH = 1 << 15
"""Rows and columns that a window spans: their distances are 16-bit halves of a word."""


@dataclass(frozen=True)
class GradientShape:
    """The tile shape of a block.

    Attributes:
        rows, columns: M and N of a block.
        transposed: whether rows are taps and columns are filters, not the other way around.
        own_rows, own_columns: M and N of a thread.
        stages: slabs in shared memory at once.
    """

    rows: int
    columns: int
    transposed: bool = False
    own_rows: int = 8
    own_columns: int = 8
    stages: int = 3

    @property
    def filters(self) -> int:
        """Filters of a block."""
        return self.columns if self.transposed else self.rows

    @property
    def taps(self) -> int:
        """Taps of channels of a block."""
        return self.rows if self.transposed else self.columns

    @property
    def threads(self) -> int:
        return self.rows // self.own_rows * (self.columns // self.own_columns)

    @property
    def shared_bytes(self) -> int:
        return self.stages * _DEEP * (self.rows + self.columns + 8) * 4 + self.taps * 8

    def __str__(self) -> str:
        return f"of {self.filters} filters by {self.taps} taps"


SHAPES = (
    GradientShape(128, 128),
    *(GradientShape(64, 128, transposed) for transposed in (False, True)),
    GradientShape(64, 64),
    *(GradientShape(32, 128, transposed, 8, 4, 4) for transposed in (False, True)),
    *(GradientShape(32, 64, transposed, 8, 4, 4) for transposed in (False, True)),
)
DIVISIONS = Divisions(SHAPES)
_NAMES = (
    *("filters", "taps", "groups", "pixels", "depth", "rows", "columns"),
    *("dy_image", "dy_channel", "dy_row", "down", "across", "top", "left"),
    *("height", "breadth", "image", "channel", "row"),
    *("tap_rows", "tap_columns", "tap_down", "tap_across"),
)


class FilterGradientKernel(ContractionKernel):
    """Products of gradients by gathered pixels; a choice is one of :data:`DIVISIONS`."""

    name = "filter gradient"
    directions = (FILTER_GRADIENT,)
    usual_price = 0.8

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        x, y = problem.x, problem.y
        if not problem.is_exact:
            return "its products need not be exact float32"
        if not problem.planar or x.pixel != 1 or y.pixel != 1:
            return "its images are not planar"
        if problem.groups != 1:
            return f"it has {problem.groups} groups"
        reach = ((k - 1) * d for k, d in zip(problem.w.shape[2:], problem.dilation, strict=True))
        if max(reach) >= _MOST_REACH:
            return "its window reaches too far"
        images = (t.channels * t.channel + t.rows * t.row for t in (x, y))
        sizes = (pixels_of(problem), _taps(problem), *images)
        return "it is too large for 32-bit indices" if max(sizes) >= _MOST_PIXELS else None

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return DIVISIONS.promising(_priced(problem, machine))

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """The kernel of the products, and the one that adds up parts if there are several."""
        shape, parts = DIVISIONS[choice]
        pointers = ("const float *__restrict__ x", "const float *__restrict__ dy", "float *dw")
        text: dict[str, object] = {
            **{"BM": shape.rows, "BN": shape.columns, "RM": shape.own_rows},
            **{"RN": shape.own_columns, "THREADS": shape.threads, "STAGES": shape.stages},
            "TURNED": str(shape.transposed).lower(),
            "MULTIPLY": template("multiply.cu"),
            "PARAMETERS": ", ".join((*pointers, *(f"const long long P_{n}" for n in _NAMES))),
        }
        source = source_of("filter_gradient.cu", text)
        grid = (prod(_grid(problem, shape)), parts, 1)
        first = Launch(source, grid, (shape.threads, 1, 1), shape.shared_bytes)
        return [first] if parts == 1 else [first, print_filter_total(problem)]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        numbers = self.numbers(problem, choice, machine)
        return filter_arguments(problem, at, DIVISIONS[choice][1], numbers)

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        shape, parts = DIVISIONS[choice]
        x, y, pixels = problem.x, problem.y, pixels_of(problem)
        groups = _grid(problem, shape)[0]
        depth = -(-_slabs(problem) // parts) * _DEEP
        rows, columns = y.rows, y.columns
        height, breadth = x.rows, x.columns
        if problem.is_pointwise and has_contiguous_channels(x) and has_contiguous_channels(y):
            # A plane is viewed as one row: threads reach the end of a row less often.
            rows, columns = height, breadth = 1, rows * columns
        return [
            *(problem.w.shape[0], _taps(problem), groups, pixels, depth, rows, columns),
            *(y.image, y.channel, y.row, *problem.stride),
            *(before for before, _ in problem.padding),
            *(height, breadth, x.image, x.channel, x.row),
            *(*problem.w.shape[2:], *problem.dilation),
        ]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        parts = DIVISIONS[choice][1]
        return filter_part_bytes(problem, parts) if parts > 1 else 0

    def shape(self, choice: int) -> str:
        return DIVISIONS.shown(choice)


def _taps(problem: ContractionProblem) -> int:
    """Taps of all channels."""
    return prod(problem.w.shape[1:])


def _slabs(problem: ContractionProblem) -> int:
    """Slabs of all pixels."""
    return -(-pixels_of(problem) // _DEEP)


def _grid(problem: ContractionProblem, shape: GradientShape) -> tuple[int, int]:
    """Blocks along rows and along columns of the result."""
    sizes = problem.w.shape[0], _taps(problem)
    down, across = reversed(sizes) if shape.transposed else sizes
    return -(-down // shape.rows), -(-across // shape.columns)


def _priced(problem: ContractionProblem, machine: Machine) -> Iterator[tuple[float, int]]:
    """Estimates the cycles of each choice: a multiprocessor has 128 multiply-adds in one."""
    slabs = _slabs(problem)
    for i, shape in enumerate(SHAPES):
        tiles = prod(_grid(problem, shape))
        resident = _THREADS // shape.threads * machine.multiprocessors
        for blocks in (1, machine.multiprocessors, resident, 2 * resident, 4 * resident):
            wanted = min(max(1, blocks // tiles), slabs // _LEAST_SLABS, MOST_DOWN)
            parts = filled(slabs, max(1, wanted))
            # Blocks of the busiest multiprocessor.
            busiest = -(-tiles * parts // machine.multiprocessors)
            warps = min(busiest, _THREADS // shape.threads) * shape.threads // 32
            rate = 128 * min(1.0, (warps + 2) / 10)  # two warps a scheduler hide what they wait for
            depth = -(-slabs // parts) * _DEEP
            loaded = shape.rows + shape.columns
            work = shape.rows * shape.columns * depth + 16 * loaded * depth
            cycles = busiest * work / rate + 1500
            if parts > 1:
                cycles += 3000 + 2 * filter_part_bytes(problem, parts) / 2000
            yield cycles, DIVISIONS.number(i, parts)
