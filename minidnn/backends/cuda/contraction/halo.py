"""Convolutions of stride 1 by ``wgmma``, each pixel read once: few channels, or few filters.

An implicit matrix product reads every pixel once for each tap of the window.  Here all filters of
a block, and the pixels around those that it computes (the halo), stay in shared memory, so both
must fit there.

Images are one line of pixels, with the padding between rows and between images, so that a tap is a
shift along the line (``halo.cu``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....runtime.operand import KernelArgument
from ...codegen.code import Code
from ..kernels import Launch
from ..machine import Machine
from ..prelude import TYPES
from ..tensor import LANES, is_aligned, is_regular, step_of
from . import epilogue_reduction_text
from .epilogue_reduction import EpilogueReduction
from .epilogue_reduction_text import (
    partial_sum_reduction,
    print_chunk,
    print_vectors,
    registers_of,
    rows_at_once,
    tile_partial_sums,
    totals_text,
)
from .kernel import ContractionKernel
from .problem import Addresses, ContractionProblem
from .split_k import filter_blocks
from .text import (
    ARCH,
    epilogue_of,
    fill,
    hopper_text,
    parameters_of,
    reconvergence_barrier,
    source_of,
    template,
    vectors_of,
)

TILE = 64
"""Pixels of a tile: M of ``wgmma``."""

WIDTHS = (128, 96, 64, 32, 16, 8)
"""Filters that a block may make: N of ``wgmma``."""


@dataclass(frozen=True)
class Halo:
    """The shape of a block: how many filters it makes, and how many warp groups multiply."""

    filters: int
    groups: int = 2

    @property
    def threads(self) -> int:
        """Threads of a block: one more warp group loads."""
        return 128 * (self.groups + 1)

    @property
    def rows(self) -> int:
        """Pixels that a warp writes at once."""
        lanes = self.filters // LANES
        return 32 // lanes if lanes > 2 else _ROWS

    @property
    def down(self) -> int:
        """Chunks of a tile that a thread writes."""
        return -(-_ROWS // self.rows)

    def adds(self, sums: int) -> bool:
        """Whether ``sums`` numbers for each of a chunk's filters fit a thread's registers, beside
        its accumulators."""
        return self.filters // 2 + sums * LANES <= _MOST_SUMS[self.groups]

    def __str__(self) -> str:
        groups = "" if self.groups == 2 else f", {self.groups} groups"
        return f"of {self.filters} filters{groups}"


HALOS = tuple(Halo(filters, groups) for groups in (2, 3) for filters in WIDTHS)

_ROWS = 16
"""Pixels of a tile that belong to a warp."""
_MOST_SUMS = {2: 104, 3: 80}
"""Registers of a thread for accumulators and sums, by the number of groups that multiply."""
_MOST_OF_TWO = 5
"""Sums and vectors for which a thread has registers where a multiprocessor has two blocks."""
_REGISTERS = {(2, 1): (0, 0), (2, 2): (48, 96), (3, 1): (80, 144)}
"""Registers of a thread that loads and of one that multiplies, by the groups that multiply and the
blocks of a multiprocessor; 0: all threads have equally many."""
_NARROW = 32
"""Filters: cuDNN's kernels have tiles of more."""
_SLABS_AHEAD = 2
"""Slabs in flight while all groups read: more are of no use."""
_MOST_ROUNDS = 4
"""Blocks that read the same pixels: more have so few filters that shared memory is what limits
their products."""
_ALIGNED = 1024
"""Bytes after which the pattern of a swizzle repeats."""
_NAMES = ("filters", "line", "plane", "tiles", "each", "PY", "PX", "batch", "H", "W")
_STRIDES = ("image", "row", "pixel", "rows", "columns", "y")


class HaloKernel(ContractionKernel):
    """A block keeps all its filters in shared memory; a choice is an index of :data:`HALOS`."""

    name = "halo"
    fuses_reduction = True

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        reason = why_not_line(problem, machine)
        if reason is not None:
            return reason
        if problem.gathered.channels // LANES % 2 and problem.dilation[1] > 1:
            return "an odd number of chunks of 8 channels, dilated"
        if problem.reduction is not None and (
            problem.reduction.is_moments or not is_rounded(problem)
        ):
            return "its epilogue reduction is no sum of rounded results"
        if (reason := epilogue_reduction_text.why_not(problem)) is not None:
            return reason
        if not self.choices(problem, machine):
            return f"filters and rows do not fit the shared memory of {machine.arch}"
        return None

    def price(self, problem: ContractionProblem) -> float:
        # Other kernels leave tensor cores empty where channels or filters are few.
        narrow = problem.gather is not None or problem.w.shape[0] <= _NARROW
        return 0.8 if narrow else 1.1

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        """The shape with the fewest filters of those that read the image the fewest times, if any
        fits.  Where a multiprocessor has room for one such block: all shapes with as many filters,
        by two groups and by three, then a shape of which a multiprocessor has two blocks."""
        fitting = [halo for halo in HALOS if _fits(problem, halo, machine)]
        fitting.sort(
            key=lambda halo: (filter_blocks(problem, halo.filters), halo.filters, halo.groups)
        )
        chosen = fitting[:1]
        if chosen and _side_by_side(problem, chosen[0], machine) == 1:
            chosen = [halo for halo in fitting if halo.filters == chosen[0].filters]
            double = (halo for halo in fitting if _side_by_side(problem, halo, machine) > 1)
            chosen += [halo for halo in double if halo.filters > _NARROW][:1]
        return [HALOS.index(halo) for halo in chosen]

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """Arguments: image, filter, the others, the vectors of the epilogue and the result; of an
        epilogue reduction what it reads and stores, and the partial sums; then the numbers of
        :meth:`numbers`.  A second kernel combines the partial sums."""
        halo = HALOS[choice]
        blocks = _side_by_side(problem, halo, machine)
        loader_registers, multiplier_registers = _REGISTERS[halo.groups, blocks]
        room = machine.shared_bytes // blocks - 1024 * (blocks - 1)
        slabs = _most_slabs(problem, halo, room)
        _, channels, rows, columns = problem.w.shape
        names = (*_NAMES, *_STRIDES, *epilogue_reduction_text.names(problem))
        results = epilogue_reduction_text.parameters(problem)
        parts = {
            "T": TYPES[problem.x.dtype],
            "N": halo.filters,
            "GROUPS": halo.groups,
            "ROWS": halo.rows,
            "TURN": _transpose_pitch(problem, halo),
            "C8": channels // LANES,
            "KH": rows,
            "KW": columns,
            "DY": problem.dilation[0],
            "DX": problem.dilation[1],
            "SLABS": slabs,
            "BLOCKS": blocks,
            "KEPT": loader_registers,
            "TAKEN": multiplier_registers,
            "CHUNKS": _panel(channels // LANES),
            "PARAMETERS": parameters_of(problem, names, results=results),
            "HOPPER": hopper_text(problem.x.dtype, halo.filters),
            "TURNING": template("transpose.cu"),
            "VECTORS": vectors_of(problem),
            **results_text(problem, halo.down),
            "JOIN": reconvergence_barrier(problem),
        }
        _, _, across = _split(problem, halo, machine)
        source = source_of("halo.cu", parts, specific=True)
        grid = (across, filter_blocks(problem, halo.filters), 1)
        first = Launch(source, grid, (halo.threads, 1, 1), _shared(problem, halo, slabs))
        return (
            [first]
            if problem.reduction is None
            else [first, partial_sum_reduction(problem, TILE, across)]
        )

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        first = (at.x, at.w, *at.others, *at.vectors, at.y)
        return epilogue_reduction_text.arguments(
            problem, first, at, self.numbers(problem, choice, machine)
        )

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        if problem.reduction is None:
            return 0
        _, _, across = _split(problem, HALOS[choice], machine)
        return tile_partial_sums(problem, TILE, across).bytes

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        x, y = problem.gathered, problem.y
        line, lines = pitches(problem)
        tiles, each, _ = _split(problem, HALOS[choice], machine)
        return [
            problem.w.shape[0],
            line,
            line * lines,
            tiles,
            each,
            problem.padding[0][0],
            problem.padding[1][0],
            problem.batch,
            *(x.rows, x.columns, x.image, x.row, x.pixel),
            *(y.rows, y.columns, step_of(y)),
            *epilogue_reduction_text.steps(problem),
            *map(step_of, problem.others),
        ]

    def shape(self, choice: int) -> str:
        return str(HALOS[choice])


def why_not_line(problem: ContractionProblem, machine: Machine) -> str | None:
    """Why a problem cannot be computed along one line of pixels; None if it can."""
    if machine.arch != ARCH:
        return f"{machine.arch} has no wgmma"
    if problem.x.dtype not in ("float16", "bfloat16"):
        return f"it is in {problem.x.dtype}"
    if problem.planar or problem.groups != 1:
        return "its images are planar" if problem.planar else f"it has {problem.groups} groups"
    tensors = (problem.gathered, problem.y, *problem.others)
    if any(not is_aligned(t, problem.batch) for t in tensors):
        return "its tensors are not aligned to vectors of 8 channels"
    if problem.before:
        return "every tap would compute the prologue"
    if any(not is_regular(t) for t in (problem.y, *problem.others)):
        return "pixels of its result are not at regular strides"
    _, _, rows, columns = problem.w.shape
    if problem.stride != (1, 1) or rows * columns == 1:
        return "no two windows overlap"
    if any(side < 0 for sides in problem.padding for side in sides):
        return "its padding is less than none"
    y = problem.y
    line, lines = pitches(problem)
    if y.columns > line or y.rows > lines:
        return "its padding is wider than its window"
    if (problem.batch + 1) * line * lines >= 1 << 31 or problem.w.span >= 1 << 31:
        return "its pixels do not fit 32-bit indices"
    return None


def pitches(problem: ContractionProblem) -> tuple[int, int]:
    """Pixels from a row to the next, and rows from an image to the next: neighbours share the zeros
    of the padding between them."""
    x = problem.gathered
    (top, bottom), (left, right) = problem.padding
    return x.columns + max(left, right), x.rows + max(top, bottom)


def _zeros(problem: ContractionProblem, halo: Halo) -> int:
    """Shared memory of zeros, in bytes, which serve as pixels and as filters: a ``wgmma`` of 16
    channels takes them beside the last 8 of a row of the window."""
    _, channels, _, columns = problem.w.shape
    left_over = channels // LANES * columns % 2
    return left_over * max(halo.filters, TILE) * 16


def _slabs(problem: ContractionProblem, groups: int) -> tuple[int, int]:
    """Slabs of :data:`TILE` pixels in the ring: the fewest, which the groups read at a time, and
    the most that are of use."""
    _, _, rows, columns = problem.w.shape
    reach = (rows - 1) * problem.dilation[0] * pitches(problem)[0]
    reach += (columns - 1) * problem.dilation[1]
    least = -(-reach // TILE) + groups
    return least, least + _SLABS_AHEAD


def _transpose_pitch(problem: ContractionProblem, halo: Halo) -> int:
    """Elements from one row of results that are transposed to the next, as in ``transpose.cu``."""
    padded = halo.filters + 8
    return halo.filters if is_rounded(problem) and halo.filters % 64 == 0 else padded


def _shared(problem: ContractionProblem, halo: Halo, slabs: int) -> int:
    """Shared memory of a block, in bytes: filters, zeros, the ring, results that are transposed,
    the vectors of an epilogue reduction, barriers."""
    _, channels, rows, columns = problem.w.shape
    chunks = channels // LANES
    ring = chunks * ((slabs + 1) * TILE + 1) * 16 + _ALIGNED
    itemsize = problem.x.itemsize if is_rounded(problem) else 4
    transposed = halo.groups * 4 * _ROWS * _transpose_pitch(problem, halo) * itemsize
    vectors = epilogue_reduction_text.shared_bytes(problem, halo.filters)
    weights = rows * columns * chunks * halo.filters * 16 + _zeros(problem, halo)
    return weights + ring + transposed + vectors + slabs * 16


def _sums(problem: ContractionProblem) -> int:
    """Sums of each filter that an epilogue reduction has."""
    return 0 if problem.reduction is None else registers_of(problem.reduction)


def _fits(problem: ContractionProblem, halo: Halo, machine: Machine) -> bool:
    """Whether registers and shared memory suffice, and few blocks read the same pixels."""
    least, _ = _slabs(problem, halo.groups)
    few_rounds = filter_blocks(problem, halo.filters) <= _MOST_ROUNDS
    return (
        few_rounds
        and halo.adds(_sums(problem))
        and _shared(problem, halo, least) <= machine.shared_bytes
    )


def _most_slabs(problem: ContractionProblem, halo: Halo, limit: int) -> int:
    """The most slabs that are of use and fit ``limit`` bytes of shared memory; 0 if too few fit."""
    least, most = _slabs(problem, halo.groups)
    fitting = [n for n in range(least, most + 1) if _shared(problem, halo, n) <= limit]
    return max(fitting, default=0)


def _side_by_side(problem: ContractionProblem, halo: Halo, machine: Machine) -> int:
    """Blocks of a multiprocessor: two where there is room for two full rings, and registers."""
    _, most = _slabs(problem, halo.groups)
    room = machine.shared_bytes // 2 - 1024  # of which each block takes 1 KiB
    fits = halo.groups == 2 and halo.filters <= 64 and _shared(problem, halo, most) <= room
    vectors = 0 if problem.reduction is None else len(problem.reduction.vectors)
    return 2 if fits and _sums(problem) + vectors <= _MOST_OF_TWO else 1


def _split(problem: ContractionProblem, halo: Halo, machine: Machine) -> tuple[int, int, int]:
    """Tiles of the line, tiles of a block, blocks along the line."""
    line, lines = pitches(problem)
    tiles = -(-problem.batch * line * lines // TILE)
    rounds = filter_blocks(problem, halo.filters)
    blocks = max(1, machine.multiprocessors * _side_by_side(problem, halo, machine) // rounds)
    block_tiles = -(-tiles // blocks)
    return tiles, block_tiles, -(-tiles // block_tiles)


def _panel(chunks: int) -> int:
    """Chunks of 16 bytes of a pixel that lie side by side: the width of one of the swizzles."""
    return next((n for n in (8, 4, 2) if chunks % n == 0), 1)


_COMPUTED = """\
    turn<N, TURN>(turned, c, lane);
    __syncwarp();
    #pragma unroll
    for (int k = 0; k < DOWN; k++) {
      const long long m = pixel(k);
      if (m >= 0) {
        const int row = lane / LANES + k * ROWS;
        float a0[8], r[8];
        read_turned(a0, turned + row * TURN + lane % LANES * 8, row);
$EPILOGUE$
        md_store<8>(y + m * P_y + n, r);
      }
    }"""

_ROUNDED = """\
    turn_rounded<N>(turned, c, lane);
    __syncwarp();
    uint4 chunks[DOWN];
    #pragma unroll
    for (int j = 0; j < DOWN; j++) {
      const int row = lane / LANES + j * ROWS & 15;
      chunks[j] = *(const uint4 *)(turned + rounded_at<N>(row, lane % LANES));
    }
"""
_WRITTEN = """\
    #pragma unroll
    for (int j = 0; j < DOWN; j++) {
      const long long m = pixel(j);
      if (m >= 0) md_write_word(y + m * P_y + n, chunks[j]);
    }"""

_ASK = """\
$DECLARE$
    auto ask = [&](int j) {
      #pragma unroll
      for (int h = 0; h < $AT_ONCE$; h++) {
        const long long m = pixel(j + h);
$ASK$
      }
    };
    ask(0);"""
_ADDED = """\
$VECTORS$
    #pragma unroll
    for (int j = 0; j < DOWN; j += $AT_ONCE$) {
$NEXT$
      #pragma unroll
      for (int h = 0; h < $AT_ONCE$; h++) {
        const long long m = pixel(j + h);
        if (m >= 0) {
$BODY$
        }
      }
    }"""


def is_rounded(problem: ContractionProblem) -> bool:
    """Whether results are rounded to their dtype right after the products, as there is no epilogue
    that needs float32."""
    return not problem.stages and problem.y.dtype == problem.x.dtype


def results_text(problem: ContractionProblem, down: int) -> dict[str, object]:
    """The fragments of ``halo.cu`` for results; ``down``: rows that a thread writes."""
    reduction, rounded = problem.reduction, is_rounded(problem)
    text: dict[str, object] = dict.fromkeys(
        ("SUMS", "SUMS_VECTORS", "SUMS_BEGIN", "SUMS_END", "ASK"), ""
    )
    text |= {"TURNED": "T" if rounded else "float", "GIVEN": 0}
    if reduction is None:
        computed = fill(_COMPUTED, {"EPILOGUE": epilogue_of(problem)})
        return text | {"RESULTS": _ROUNDED + _WRITTEN if rounded else computed}
    assert rounded
    results = _ROUNDED + _added(reduction, down)
    return text | totals_text(reduction) | {"ASK": _ask(reduction, down), "RESULTS": results}


def _ask(reduction: EpilogueReduction, down: int) -> str:
    """The loads of some rows of the reduction's tensors, and those of the first rows."""
    at_once = rows_at_once(reduction, down)
    declare, ask = Code(), Code()
    for i, _ in enumerate(reduction.tensors):
        declare.line(f"uint4 word{i}[{at_once}];")
        ask.line(f"word{i}[h] = asked(t{i} + m * P_t{i} + n, m >= 0);")
    text = {"AT_ONCE": at_once, "DECLARE": _text(declare), "ASK": _text(ask)}
    return fill(_ASK, text) if reduction.tensors else ""


def _added(reduction: EpilogueReduction, down: int) -> str:
    """The code of what a thread computes from its chunks, adds up and stores."""
    vectors, body = Code(), Code()
    print_vectors(vectors, reduction)
    print_chunk(body, reduction, "chunks[j + h]", "totals.of[{}][0]", False)
    return fill(
        _ADDED,
        {
            "AT_ONCE": rows_at_once(reduction, down),
            "VECTORS": _text(vectors),
            "NEXT": "      if (j) ask(j);" if reduction.tensors else "",
            "BODY": _text(body),
        },
    )


def _text(code: Code) -> str:
    return str(code).rstrip("\n")
