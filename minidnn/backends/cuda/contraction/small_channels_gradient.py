"""Weight gradients of convolutions with few input channels, by tensor cores: a network's first one.

A gradient of a filter is a matrix product, filters by pixels times pixels by taps.  With three
channels a library either gathers a matrix of windows, which is many times as large as the image,
or leaves most of a tensor core empty.  Here a block reads each gradient and each row of the image
once, windows overlap in shared memory (see below), and sums stay in registers until all pixels of a
block are done.  Each block leaves partial sums (split-K over pixels); a second kernel adds these in
a fixed order, so that every run gives the same bits.

The least time is that of reading both tensors once.  A 7x7 convolution of stride 2 from 3 to 64
channels on 128 images of 224 x 224 reads 244 MB: 0.08 ms at 3 TB/s, which is 11 cycles of a
multiprocessor for each pixel of its part.  Its 30 GFLOP become 35, as the 21 numbers that a window
takes of a row are padded to 24: 9 cycles of tensor cores.  Each of a block's 8 warps makes 32
filters by 11 chunks of 8 taps, 88 sums a thread, and reads 960 bytes of shared memory for each
pixel with its neighbours: 8 cycles.  The three are so close to each other that about twice the
least time is to be expected.  For a 3x3 window memory alone counts.

A block takes at most half the shared memory, so that a multiprocessor has two, of 16 warps
together; there is room for the gradients of four steps, of which three are in flight.

The rows of an image lie in shared memory so that what a window reads of one of them, S * C numbers
side by side, begins at a multiple of 16 bytes for every pixel: then ``ldmatrix`` reads windows
where they overlap, and nothing is copied for each pixel.  Pixels are ``step`` numbers apart.  Where
that is no multiple of eight, a row lies there in several copies, each shifted by ``step``: copy g
is for the pixels whose number is g modulo the number of copies.  Channels may be padded, which
makes the step even or the copies few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod

from ....runtime.operand import KernelArgument
from ..kernels import Launch
from ..machine import Machine
from ..prelude import TYPES
from .kernel import ContractionKernel
from .problem import FILTER_GRADIENT, Addresses, ContractionProblem
from .split_k import filter_blocks, filter_part_bytes, print_filter_total, total_arguments
from .text import source_of

WARPS = 8
MOST_CHANNELS = 8
MOST_TAPS = 7
"""Rows and columns of a window."""
_PIXELS = 128
"""Pixels of a step, at most."""
_MOST_STAGES = 4
_LEAST_STAGES = 2
_MOST_SUMS = 88
_MOST_SUMS_BEFORE = 64
"""Sums of a thread on Hopper, and on GPUs before it, for which more do not compile into the 128
registers that a thread has where a multiprocessor has two blocks."""
_HOPPER = (9, 0)
_RESERVED = 1024
"""Bytes of shared memory that each block takes beside its own."""
_CHUNK = 8
"""Elements in 16 bytes."""


@dataclass(frozen=True)
class Rows:
    """The layout of a row of the image in shared memory, for windows that are ``step`` apart.

    Attributes:
        channels: channels of a pixel, with those that pad it.
        step: elements of the row from one pixel of the result to the next.
        chunks: chunks of 16 bytes that a window takes of a row.
    """

    channels: int
    step: int
    chunks: int

    @property
    def copies(self) -> int:
        """Copies of the row, so that each window begins at a multiple of 16 bytes in one."""
        return _CHUNK // gcd(_CHUNK, self.step)

    def pitch(self, pixels: int) -> int:
        """Elements from one copy to the next, so that windows of eight pixels share the fewest
        banks.  There is room for one pixel more."""
        reached = (pixels - self.copies) * self.step + self.chunks * _CHUNK
        least = -(-(reached + self.channels) // _CHUNK)
        return _CHUNK * min(range(least, least + _CHUNK), key=self._bank_conflicts)

    def _bank_conflicts(self, pitch: int) -> int:
        """How many of eight windows share banks, where copies are ``pitch`` chunks apart."""
        ahead = self.step * self.copies // _CHUNK
        banks = [
            (pixel % self.copies * pitch + pixel // self.copies * ahead) % _CHUNK
            for pixel in range(_CHUNK)
        ]
        return max(map(banks.count, banks))


def rows_of(channels: int, window: int, stride: int) -> Rows:
    """The layout of rows with the fewest products, and of these the one with the fewest copies."""
    layouts = [
        Rows(padded, padded * stride, -(-window * padded // _CHUNK))
        for padded in range(channels, MOST_CHANNELS + 1)
    ]
    return min(layouts, key=lambda rows: (rows.chunks, rows.copies, rows.channels))


@dataclass(frozen=True)
class SmallChannelsTile:
    """What a block does in a step: the products of ``down`` times ``across`` pixels of the result.

    Attributes:
        filters: filters of a block.
        filter_groups: groups of warps that divide the filters.
        tap_groups: groups of warps that divide the chunks of the window.
        down: rows of the result.
        across: pixels of such a row.
        stages: steps whose gradients have room in shared memory.
        rows: the layout of a row of the image.
        window: chunks of the whole window.
        kept: rows of the image in shared memory: those of a step, and the new ones of the next.
    """

    filters: int
    filter_groups: int
    tap_groups: int
    down: int
    across: int
    stages: int
    rows: Rows
    window: int
    kept: int

    @property
    def pixel_groups(self) -> int:
        """Groups of warps that divide the pixels."""
        return WARPS // (self.filter_groups * self.tap_groups)

    @property
    def chunks(self) -> int:
        """Chunks of the window that a warp takes."""
        return -(-self.window // self.tap_groups)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the image, with its copies."""
        return self.rows.copies * self.rows.pitch(self.across) * 2

    @property
    def stage_bytes(self) -> int:
        """Bytes of the gradients of a step."""
        return self.down * self.across * self.filters * 2

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: zeros, rows of the image and gradients; in the end its sums."""
        running = 16 + self.kept * self.row_bytes + self.stages * self.stage_bytes
        return max(running, self.filters * self.window * _CHUNK * 4)

    def blocks(self, machine: Machine) -> int:
        """Blocks that a multiprocessor runs at once."""
        room = machine.shared_bytes + _RESERVED
        return min(2, room // (self.shared_bytes + _RESERVED))


def shape_of(problem: ContractionProblem, machine: Machine) -> SmallChannelsTile | None:
    """The shape with the largest steps of which two blocks fit a multiprocessor, or one; None if
    none fits."""
    sums = _MOST_SUMS if machine.capability >= _HOPPER else _MOST_SUMS_BEFORE
    shapes = list(_shapes(problem, sums))
    for blocks in (2, 1):
        for shape in shapes:
            if shape.blocks(machine) >= blocks:
                return shape
    return None


def _shapes(problem: ContractionProblem, sums: int) -> Iterator[SmallChannelsTile]:
    """Shapes from large steps to small ones, each with many stages and then with few."""
    _, channels, down, across = problem.w.shape
    y, stride = problem.y, problem.stride
    rows = rows_of(channels, across, stride[1])
    window = down * rows.chunks
    filters, filter_groups, tap_groups = _warps(problem.w.shape[0], window, sums)
    for pixels in range(_PIXELS, 0, -16):
        parts = -(-y.columns // pixels)
        wide = -(-y.columns // parts // 16) * 16
        high = max(1, min(y.rows, pixels // wide))
        kept = (high - 1) * stride[0] + down + high * stride[0]
        for stages in range(_MOST_STAGES, _LEAST_STAGES - 1, -1):
            yield SmallChannelsTile(
                *(filters, filter_groups, tap_groups, high, wide, stages, rows, window, kept)
            )


def _warps(filters: int, window: int, sums: int) -> tuple[int, int, int]:
    """Filters of a block, and the groups of its warps that divide filters and chunks: so that a
    thread has at most ``sums``, and tensor cores and shared memory have the least work."""
    widest = min(64, -(-filters // 16) * 16)
    widest = 64 if widest == 48 else widest
    for block in (widest, 32, 16):
        priced = []
        for by_filter in (1, 2, 4):
            for by_tap in (1, 2, 4, 8):
                chunks = -(-window // by_tap)
                fits = block // 16 % by_filter == 0 and by_filter * by_tap <= WARPS
                if fits and chunks <= window and block // 16 // by_filter * chunks * 4 <= sums:
                    products = block * chunks * by_tap * 8 / 1024
                    read = (block * 2 * by_tap + chunks * by_tap * 16 * by_filter) / 128
                    priced.append((products + read, block, by_filter, by_tap))
        if priced:
            return min(priced)[1:]
    raise AssertionError(f"no warps for a window of {window} chunks")


_NAMES = ("filters", "rows", "columns", "segments", "steps", "parts", "height", "width")
_STRIDES = ("top", "left", "image", "row", "pixel", "dy_image", "dy_row", "dy_pixel")
_LANES = 8
"""Elements of a copy of 16 bytes."""


_TO = "md_shared + to + filter % 8 * 2"
_COPIES = {
    8: "copy<T>(shared + to, from, inside);",
    4: f"md_copy_if<8>({_TO}, from, inside);",
    2: f"md_copy_if<4>({_TO}, from, inside);",
    1: f"((T *)({_TO}))->bits = inside ? from->bits : (unsigned short)0;",
}
"""The code that copies so many elements from device memory to shared memory."""


class SmallChannelsGradientKernel(ContractionKernel):
    """Steps of pixels for each block; a choice is the number of split-K parts."""

    name = "small-channels gradient"
    directions = (FILTER_GRADIENT,)
    usual_price = 0.5

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if problem.x.dtype not in ("float16", "bfloat16"):
            return f"it is in {problem.x.dtype}"
        if problem.planar or problem.groups != 1:
            return "its images are planar" if problem.planar else f"it has {problem.groups} groups"
        if problem.x.channel != 1 or problem.y.channel != 1:
            return "its channels are not contiguous"
        _, channels, *window = problem.w.shape
        if channels > MOST_CHANNELS:
            return f"it has more than {MOST_CHANNELS} input channels"
        if max(window) > MOST_TAPS or problem.dilation != (1, 1):
            return f"its window is dilated or larger than {MOST_TAPS} x {MOST_TAPS}"
        shape = shape_of(problem, machine)
        if shape is None:
            return f"rows of its image do not fit the shared memory of {machine.arch}"
        images = (t.rows * t.row + t.columns * t.pixel for t in (problem.x, problem.y))
        sizes = (_steps(problem, shape), prod(problem.w.shape), *images)
        return "its images do not fit 32-bit indices" if max(sizes) >= 1 << 30 else None

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        """As many parts as the machine runs blocks at once."""
        shape = _shape(problem, machine)
        groups = filter_blocks(problem, shape.filters)
        wave = max(1, machine.multiprocessors * shape.blocks(machine) // groups)
        return [min(_steps(problem, shape), wave)]

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """The kernel of the partial sums, which takes image, gradient and partial sums, then the
        numbers of :meth:`numbers`; and the one that adds them up and rounds to half precision."""
        shape = _shape(problem, machine)
        groups = filter_blocks(problem, shape.filters)
        first = source_of("small_channels_gradient.cu", _text(problem, shape, machine))
        parts = Launch(first, (choice, groups, 1), (32 * WARPS, 1, 1), shape.shared_bytes)
        return [parts, print_filter_total(problem)]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        y = at.y + problem.y.offset * problem.y.itemsize
        numbers = self.numbers(problem, choice, machine)
        return [[at.x, y, at.workspace, *numbers], total_arguments(problem, at, choice)]

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        x, y = problem.x, problem.y
        shape = _shape(problem, machine)
        return [
            *(problem.w.shape[0], y.rows, y.columns, _segments(problem, shape)),
            *(_steps(problem, shape), choice, x.rows, x.columns),
            *(before for before, _ in problem.padding),
            *(x.image, x.row, x.pixel, y.image, y.row, y.pixel),
        ]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        return filter_part_bytes(problem, choice)

    def shape(self, choice: int) -> str:
        return f"in {choice} part{'s' * (choice != 1)}"


def _shape(problem: ContractionProblem, machine: Machine) -> SmallChannelsTile:
    """The shape of a problem for which there is one."""
    shape = shape_of(problem, machine)
    assert shape is not None, problem.describe()
    return shape


def _segments(problem: ContractionProblem, shape: SmallChannelsTile) -> int:
    """How many steps a row of the result has."""
    return -(-problem.y.columns // shape.across)


def _steps(problem: ContractionProblem, shape: SmallChannelsTile) -> int:
    """Steps of all images."""
    return problem.batch * _segments(problem, shape) * -(-problem.y.rows // shape.down)


def _text(
    problem: ContractionProblem, shape: SmallChannelsTile, machine: Machine
) -> dict[str, object]:
    """What the names in dollars of ``small_channels_gradient.cu`` stand for."""
    _, channels, rows, columns = problem.w.shape
    element = TYPES[problem.x.dtype]
    lanes = _lanes(problem)
    pointers = f"const {element} *__restrict__ x, const {element} *__restrict__ dy, float *parts"
    numbers = (f"const long long P_{name}" for name in (*_NAMES, *_STRIDES))
    return {
        "T": element,
        "FILTERS": shape.filters,
        "BY_FILTER": shape.filter_groups,
        "BY_TAP": shape.tap_groups,
        "BY_PIXEL": shape.pixel_groups,
        "STAGES": shape.stages,
        "LANES": lanes,
        "DOWN": shape.down,
        "ACROSS": shape.across,
        "R": rows,
        "S": columns,
        "C": channels,
        "SY": problem.stride[0],
        "SX": problem.stride[1],
        "WIDE": shape.rows.channels,
        "CHUNKS": shape.rows.chunks,
        "COPIES": shape.rows.copies,
        "PITCH": shape.rows.pitch(shape.across),
        "BLOCKS": shape.blocks(machine),
        "COPIES_AHEAD": 4 if lanes == _LANES else 1,
        "PTX": "f16" if problem.x.dtype == "float16" else "bf16",
        "COPY": _COPIES[lanes],
        "PARAMETERS": ", ".join((pointers, *numbers)),
    }


def _lanes(problem: ContractionProblem) -> int:
    """Filters whose gradients one copy takes, by the alignment of pixels."""
    y = problem.y
    steps = (y.offset, y.pixel, y.row, *((y.image,) if problem.batch > 1 else ()))
    return gcd(_LANES, problem.w.shape[0], *steps)
