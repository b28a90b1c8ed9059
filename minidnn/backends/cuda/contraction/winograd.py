"""3x3 convolutions in exact float32 by Winograd's F(2x2, 3x3), fused into one kernel.

cuDNN's kernels write transformed tiles to memory, which is much where maps are large and channels
few.  Here a block transforms tiles as it reads them, multiplies from shared memory and transforms
the sums back before it writes results; a kernel before it transforms the filters.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (arXiv 1509.09308).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....runtime.operand import KernelArgument
from ...codegen.code import Code
from ..kernels import Launch
from ..machine import Machine
from ..tensor import has_contiguous_channels
from .kernel import ContractionKernel
from .problem import Addresses, ContractionProblem
from .split_k import (
    MOST_DOWN,
    Divisions,
    filled,
    filter_blocks,
    part_bytes,
    print_total,
    total_numbers,
    without_stages,
)
from .text import compute_stages, parameters_of, source_of

_CHANNELS = 8
"""K of a slab: channels."""
_THREADS = 256
_LEAST_CHANNELS = 16
"""With fewer, transforming tiles is most of the work."""
_LEAST_SLABS = 4
"""Slabs of a part, at least."""
_MOST = 1 << 31


@dataclass(frozen=True)
class WinogradShape:
    """What a block computes: ``tiles`` of 2 x 2 results each, of ``filters`` filters."""

    filters: int
    tiles: int

    def __str__(self) -> str:
        return f"of {self.tiles} tiles by {self.filters} filters"


SHAPES = (WinogradShape(64, 32), WinogradShape(32, 64))
DIVISIONS = Divisions(SHAPES)


class WinogradKernel(ContractionKernel):
    """F(2x2, 3x3) in one kernel; a choice is one of :data:`DIVISIONS`."""

    name = "winograd"
    accuracies = ("normal",)
    usual_price = 1.3

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if not problem.is_exact:
            return "its products need not be exact float32"
        geometry = (problem.w.shape[2:], problem.stride, problem.dilation, problem.groups)
        if geometry != ((3, 3), (1, 1), (1, 1), 1) or problem.before or problem.gather is not None:
            return "it is no 3x3 convolution of stride 1"
        if any(t.pixel != 1 for t in (problem.x, problem.y, *problem.others)):
            return "its images are not planar"
        if min(problem.w.shape[:2]) < _LEAST_CHANNELS:
            return "it has few channels"
        if max(problem.w.shape[0], _slabs(problem) * _CHANNELS) > MOST_DOWN:
            return "it has too many filters or channels"
        return "it has too many tiles" if _tiles(problem) >= _MOST else None

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        """The two cheapest choices of each shape that computes the fewest surplus filters."""
        filters = problem.w.shape[0]
        padded = [-(-filters // shape.filters) * shape.filters for shape in SHAPES]
        chosen = []
        for i in range(len(SHAPES)):
            if padded[i] == min(padded):
                priced = sorted(
                    (_cycles(problem, SHAPES[i], parts, machine), parts)
                    for parts in _parts(problem)
                )
                chosen += [DIVISIONS.number(i, parts) for _, parts in priced[:2]]
        return chosen

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """The kernels that transform filters, convolve, and add up partial sums if there are any.

        Arguments of the first: filter, transformed filter; of the second: image, transformed
        filter, the others, the vectors, the result; each then takes the numbers
        of :func:`_sizes_of`.
        """
        shape, parts = DIVISIONS[choice]
        core_problem = problem if parts == 1 else without_stages(problem)
        launches = [_filter_launch(problem, shape), _launch(core_problem, shape, parts)]
        return launches if parts == 1 else [*launches, print_total(problem)]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        shape, parts = DIVISIONS[choice]
        first, second, *third = _sizes_of(problem, choice)
        filters, operands = [at.w, at.workspace, *first], [*at.others, *at.vectors, at.y]
        if parts == 1:
            return [filters, [at.x, at.workspace, *operands, *second]]
        sums = at.workspace + _filter_bytes(problem, shape)
        products = [at.x, at.workspace, sums, *second]
        return [filters, products, [sums, at.w, *operands, *third[0]]]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        """Bytes of the transformed filter, and of the partial sums after it."""
        shape, parts = DIVISIONS[choice]
        return _filter_bytes(problem, shape) + part_bytes(problem, parts)

    def shape(self, choice: int) -> str:
        return DIVISIONS.shown(choice)


def _parts(problem: ContractionProblem) -> list[int]:
    """Into how many parts K can be split: none is empty, as that would read filters after the last
    one."""
    slabs = _slabs(problem)
    divisible = all(map(has_contiguous_channels, (problem.y, *problem.others)))
    most = max(1, slabs // _LEAST_SLABS) if divisible else 1
    return sorted({filled(slabs, parts) for parts in range(1, 1 + most)})


def _cycles(
    problem: ContractionProblem, shape: WinogradShape, parts: int, machine: Machine
) -> float:
    """Estimates cycles: a multiprocessor has one block, with 128 multiply-adds in three of four."""
    blocks = -(-_blocks(problem, shape) * parts // machine.multiprocessors)
    slab = shape.filters * shape.tiles * 16 * _CHANNELS / (0.75 * 128)
    adding = 3000 + 2 * part_bytes(problem, parts) / 2500 if parts > 1 else 0
    return blocks * (-(-_slabs(problem) // parts) * slab + 3000) + adding


def _filter_bytes(problem: ContractionProblem, shape: WinogradShape) -> int:
    """Bytes of the transformed filter."""
    return _slabs(problem) * _CHANNELS * 16 * _padded(problem, shape) * 4


def _slabs(problem: ContractionProblem) -> int:
    """Slabs of all channels."""
    return -(-problem.w.shape[1] // _CHANNELS)


def _blocks(problem: ContractionProblem, shape: WinogradShape) -> int:
    """Blocks of a part."""
    return -(-_tiles(problem) // shape.tiles) * (_padded(problem, shape) // shape.filters)


def _sizes_of(problem: ContractionProblem, choice: int) -> list[list[int]]:
    """The numbers that each kernel takes."""
    shape, parts = DIVISIONS[choice]
    filters, channels = problem.w.shape[:2]
    core_problem = problem if parts == 1 else without_stages(problem)
    x, y = problem.x, core_problem.y
    down, across = _down_across(problem)
    layouts = [[t.offset, t.image, t.channel, t.row] for t in (y, *core_problem.others)]
    numbers = [
        *(channels, filters, _padded(problem, shape) // shape.filters),
        *(-(-_slabs(problem) // parts) * _CHANNELS, part_bytes(problem, parts) // parts // 4),
        *(_tiles(problem), down * across, across),
        *(before for before, _ in problem.padding),
        *(x.rows, x.columns, x.image, x.channel, x.row, y.rows, y.columns),
        *(number for layout in layouts for number in layout),
    ]
    sizes = [[channels, filters, _padded(problem, shape)], numbers]
    return sizes if parts == 1 else [*sizes, total_numbers(problem, parts)]


def _names(problem: ContractionProblem) -> tuple[str, ...]:
    """The names of the numbers that the convolution's kernel takes."""
    tensors = ["y", *(f"x{1 + i}" for i in range(len(problem.others)))]
    strides = (f"{what}_{t}" for t in tensors for what in ("offset", "image", "channel", "row"))
    return (
        *("channels", "filters", "groups", "depth", "part"),
        *("tiles", "plane", "across", "top", "left"),
        *("height", "width", "image", "channel", "row", "rows", "columns", *strides),
    )


def _down_across(problem: ContractionProblem) -> tuple[int, int]:
    """Tiles of an image, down and across."""
    return -(-problem.y.rows // 2), -(-problem.y.columns // 2)


def _tiles(problem: ContractionProblem) -> int:
    """Tiles of all images."""
    down, across = _down_across(problem)
    return problem.batch * down * across


def _padded(problem: ContractionProblem, shape: WinogradShape) -> int:
    """Filters, rounded up to whole blocks."""
    return filter_blocks(problem, shape.filters) * shape.filters


def _filter_launch(problem: ContractionProblem, shape: WinogradShape) -> Launch:
    """The kernel that transforms the filters."""
    source = source_of("winograd_filter.cu", {})
    grid = (-(-_padded(problem, shape) // _THREADS), _slabs(problem) * _CHANNELS, 1)
    return Launch(source, grid, (_THREADS, 1, 1))


def _launch(problem: ContractionProblem, shape: WinogradShape, parts: int) -> Launch:
    """The kernel of the convolution."""
    text = {
        "FILTERS": shape.filters,
        "TILES": shape.tiles,
        "PARAMETERS": parameters_of(problem, _names(problem), distances=False),
        "EPILOGUE": _epilogue(problem),
    }
    source = source_of("winograd.cu", text)
    shared = 2 * _CHANNELS * 16 * (shape.filters + shape.tiles) * 4
    return Launch(source, (_blocks(problem, shape), parts, 1), (_THREADS, 1, 1), shared)


def _epilogue(problem: ContractionProblem) -> str:
    """The epilogue of the four results of a tile."""
    code = Code()
    for i in range(len(problem.vectors)):
        code.line(f"const float b{i}[4] = {{v{i}[k], v{i}[k], v{i}[k], v{i}[k]}};")
    for i in range(len(problem.others)):
        offset = _place(f"x{1 + i}")
        code.line(f"const float *const from{1 + i} = x{1 + i} + {offset};")
        code.line(f"float a{1 + i}[4];")
        value = f"there[j] ? from{1 + i}[j / 2 * P_row_x{1 + i} + j % 2] : 0.0f"
        code.unrolled_line(f"for (int j = 0; j < 4; j++) a{1 + i}[j] = {value};")
    compute_stages(code, problem, "4")
    return str(code).rstrip("\n")


def _place(t: str) -> str:
    """The offset at which a tile begins in tensor ``t``, by the numbers of its name."""
    return f"P_offset_{t} + n * P_image_{t} + k * P_channel_{t} + row * P_row_{t} + column"
