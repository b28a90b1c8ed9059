"""Convolutions of stride 1 by ``wgmma``, each pixel read once: few channels, or few filters.

An implicit matrix product reads every pixel once for each tap of the window.  Here all filters of
a block, and the pixels around those that it computes, stay in shared memory, so both must fit
there.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..kernels import Launch
from ..machine import Machine
from ..prelude import TYPES
from .chunks import LANES, is_aligned, is_regular, step_of
from .hopper import ARCH, hopper_text
from .kernel import ContractionKernel
from .problem import ContractionProblem
from .text import epilogue_of, join_of, parameters_of, source_of, template, vectors_of

TILE = 64
"""Pixels that one ``wgmma`` makes."""

WIDTHS = (128, 96, 64, 32, 16, 8)
"""Filters that a block may make."""

_THREADS = 384
_NARROW = 32
"""Filters, of which cuDNN's kernels make more at once."""
_MOST_SLABS_AHEAD = 3
_LEAST_SLABS_AHEAD = 1
_ALIGNED = 1024
"""Bytes at which the pattern of a swizzle begins anew."""
_NAMES = ("filters", "line", "plane", "tiles", "each", "PY", "PX", "batch", "H", "W")
_STRIDES = ("image", "row", "pixel", "rows", "columns", "y")


class HaloKernel(ContractionKernel):
    """A block keeps all its filters in shared memory; a choice is how many."""

    name = "halo"

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        reason = why_not_line(problem, machine)
        if reason is not None:
            return reason
        if problem.gathered.channels // LANES % 2 and problem.dilation[1] > 1:
            return "an odd number of chunks of 8 channels, dilated"
        if not self.choices(problem, machine):
            return f"filters and rows do not fit the shared memory of {machine.arch}"
        return None

    def price(self, problem: ContractionProblem) -> float:
        # Other kernels leave tensor cores empty where channels or filters are few.
        narrow = problem.gather is not None or problem.w.shape[0] <= _NARROW
        return 0.8 if narrow else 1.1

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        """How many filters a block makes: the least that read the image few times, if any fit."""
        filters = problem.w.shape[0]
        limit, least = machine.shared_bytes, _slabs(problem)[0]
        fitting = [n for n in WIDTHS if _shared(problem, n, least) <= limit]
        return sorted(fitting, key=lambda n: (-(-filters // n), n))[:1]

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """Arguments: image, filter, the others, the vectors of what comes after, the result; then
        the numbers of :meth:`numbers`."""
        element = TYPES[problem.x.dtype]
        blocks = _side_by_side(problem, choice, machine)
        room = machine.shared_bytes // blocks - 1024 * (blocks - 1)
        slabs = _most_slabs(problem, choice, room)
        _, channels, rows, columns = problem.w.shape
        parts = {
            "T": element,
            "N": choice,
            "C8": channels // LANES,
            "KH": rows,
            "KW": columns,
            "DY": problem.dilation[0],
            "DX": problem.dilation[1],
            "SLABS": slabs,
            "BLOCKS": blocks,
            "CHUNKS": _panel(channels // LANES),
            "PARAMETERS": parameters_of(problem, (*_NAMES, *_STRIDES)),
            "HOPPER": hopper_text(problem.x.dtype, choice),
            "TURN": template("turn.cu"),
            "VECTORS": vectors_of(problem),
            "EPILOGUE": epilogue_of(problem),
            "JOIN": join_of(problem),
        }
        _, _, across = _split(problem, choice, machine)
        source = source_of("halo.cu", parts, specific=True)
        grid = (across, -(-problem.w.shape[0] // choice), 1)
        return [Launch(source, grid, (_THREADS, 1, 1), _shared(problem, choice, slabs))]

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        x, y = problem.gathered, problem.y
        line, lines = pitches(problem)
        tiles, each, _ = _split(problem, choice, machine)
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
            *map(step_of, problem.others),
        ]

    def shape(self, choice: int) -> str:
        return f"of {choice} filters"


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
        return "its tensors are no whole chunks of 8 channels"
    if problem.before:
        return "every tap would compute what comes before"
    if any(not is_regular(t) for t in (problem.y, *problem.others)):
        return "pixels of its result do not follow each other"
    _, _, rows, columns = problem.w.shape
    if problem.stride != (1, 1) or rows * columns == 1:
        return "no two windows overlap"
    y = problem.y
    line, lines = pitches(problem)
    if y.columns > line or y.rows > lines:
        return "its padding is wider than its window"
    if (problem.batch + 1) * line * lines >= 1 << 31 or problem.w.span >= 1 << 31:
        return "its pixels do not fit 32 bits"
    return None


def pitches(problem: ContractionProblem) -> tuple[int, int]:
    """Pixels from a row to the next, and rows from an image to the next: the padding on both
    sides is the same zeros."""
    x = problem.gathered
    (top, bottom), (left, right) = problem.padding
    return x.columns + max(left, right), x.rows + max(top, bottom)


def _taps(problem: ContractionProblem) -> tuple[int, int]:
    """Rows and columns of the window; an even number of columns if chunks of channels are odd."""
    _, channels, rows, columns = problem.w.shape
    return rows, columns + columns % 2 * (channels // LANES % 2)


def _slabs(problem: ContractionProblem) -> tuple[int, int]:
    """Slabs of :data:`TILE` pixels in the ring: at least, and so many as are of use."""
    rows, columns = _taps(problem)
    reach = (rows - 1) * problem.dilation[0] * pitches(problem)[0]
    reach += (columns - 1) * problem.dilation[1]
    needed = 1 + -(-reach // TILE)
    return needed + _LEAST_SLABS_AHEAD, needed + _MOST_SLABS_AHEAD


def _shared(problem: ContractionProblem, width: int, slabs: int) -> int:
    """Bytes of shared memory: filters, the ring, results being turned, barriers."""
    rows, columns = _taps(problem)
    chunks = problem.w.shape[1] // LANES
    ring = chunks * ((slabs + 1) * TILE + 1) * 16 + _ALIGNED
    return rows * columns * chunks * width * 16 + ring + 8 * 16 * (width + 8) * 4 + slabs * 16


def _most_slabs(problem: ContractionProblem, width: int, limit: int) -> int:
    least, most = _slabs(problem)
    fitting = [n for n in range(least, most + 1) if _shared(problem, width, n) <= limit]
    return max(fitting, default=0)


def _side_by_side(problem: ContractionProblem, width: int, machine: Machine) -> int:
    """Blocks of a multiprocessor: two where both have rings of full length."""
    _, most = _slabs(problem)
    room = machine.shared_bytes // 2 - 1024  # of which each block takes 1 KiB
    return 2 if width <= 64 and _shared(problem, width, most) <= room else 1


def _split(problem: ContractionProblem, width: int, machine: Machine) -> tuple[int, int, int]:
    """Tiles of the line, tiles of a block, blocks along the line."""
    line, lines = pitches(problem)
    tiles = -(-problem.batch * line * lines // TILE)
    groups = -(-problem.w.shape[0] // width)
    blocks = max(1, machine.multiprocessors * _side_by_side(problem, width, machine) // groups)
    each = -(-tiles // blocks)
    return tiles, each, -(-tiles // each)


def _panel(chunks: int) -> int:
    """Chunks of 16 bytes of a pixel that lie side by side: what one of the swizzles spreads."""
    return next((n for n in (8, 4, 2) if chunks % n == 0), 1)
