"""Depthwise convolutions, channels last: each group has one input channel, so nothing is left for
tensor cores, and moving the image is most of the work.

A thread computes a strip of pixels for neighbouring channels, which it reads in accesses of up to
16 bytes, so that what is read once serves several results.  A :class:`Strip` says how many rows,
columns and channels; a cost model orders those that fit registers.  All give the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ...codegen.code import Code
from ..kernels import Launch
from ..machine import Machine
from ..prelude import TYPES
from ..tensor import Tensor, is_regular, step_of
from .kernel import ContractionKernel
from .problem import ContractionProblem
from .text import compute_stages, parameters_of, source_of, window_parts

_ACCESS = 16  # bytes
_FEW_TAPS = 16
"""Taps of a window: of a larger one a block has twice as many threads, which share its filters."""
_CHANNELS = 64
"""Channels of a block: more take much shared memory, fewer are no whole cache lines of a pixel."""
_REGISTERS = 168
"""Registers that a thread may have, by the estimate of :func:`_registers`."""
_BESIDE = 40
"""Registers for addresses, and for all but pixels, filters and sums."""
_SPARE = 26
"""Registers that the compiler is given beside those of the estimate."""
_FILE = 65536
"""Registers of a multiprocessor."""
_UNROLLED = 1700
"""Multiply-adds of a thread, unrolled: so many instructions still fit the instruction cache."""
_UNROLLED_ROWS = 5
"""Rows of a filter: with more, a thread computes one row."""
_FEW_ROWS = 3
"""Rows of a filter: with more, they are a loop where a thread computes one row."""
_MOST = 1 << 31
_MEASURED = 6
"""Of so many strips the fastest took 0.2 % more time in the mean than the fastest of all."""
_NARROW = 1 << 16
"""Results for each multiprocessor: where there are more, wide strips leave none idle, and strips of
two channels lost wherever they were measured."""


@dataclass(frozen=True)
class Strip:
    """What a thread computes: rows and columns of pixels, of ``lanes`` channels."""

    lanes: int
    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} pixels of {self.lanes} channels"


STRIPS = tuple(
    Strip(lanes, rows, columns)
    for lanes, rows, columns in product((8, 4, 2, 1), (1, 2, 4, 7, 8), (1, 2, 4, 7, 8))
)


def strips_for(problem: ContractionProblem, machine: Machine) -> list[int]:
    """The indices of the :data:`STRIPS` that fit, the cheapest first."""
    possible = [i for i, strip in enumerate(STRIPS) if _is_possible(problem, strip, machine)]
    return sorted(possible, key=lambda i: (_price(problem, STRIPS[i], machine), i))


def _worth_measuring(problem: ContractionProblem, machine: Machine) -> list[int]:
    """The cheapest strips with wide accesses; narrow ones make more threads, where results are
    few."""
    y = problem.y
    results = problem.batch * y.rows * y.columns * y.channels
    least = 4 if results > _NARROW * machine.multiprocessors else 2
    possible = strips_for(problem, machine)
    return ([i for i in possible if STRIPS[i].lanes >= least] or possible)[:_MEASURED]


def _is_possible(problem: ContractionProblem, strip: Strip, machine: Machine) -> bool:
    """Whether alignment, sizes, registers and shared memory allow a strip."""
    lanes, multiplier = strip.lanes, _multiplier(problem)
    size = problem.x.itemsize
    if lanes * size > _ACCESS or problem.w.shape[0] % lanes:
        return False
    if lanes % multiplier and multiplier % lanes:
        return False
    results = (problem.y, *problem.others)
    if not is_aligned(problem.x, problem.batch, max(1, lanes // multiplier)):
        return False
    if not all(is_aligned(t, problem.batch, lanes) for t in results):
        return False
    if strip.rows > max(1, problem.y.rows) or strip.columns > max(1, problem.y.columns):
        return False
    kernel_rows = problem.w.shape[2]
    if strip.rows > 1 and (
        kernel_rows > _UNROLLED_ROWS or _multiply_adds(problem, strip) > _UNROLLED
    ):
        return False
    shared = prod(problem.w.shape[2:]) * _pitch(problem, strip) * 4
    return _registers(problem, strip) <= _REGISTERS and shared <= machine.shared_bytes


def is_aligned(t: Tensor, batch: int, lanes: int) -> bool:
    """Whether ``lanes`` channels of every pixel can be read in one access."""
    steps = (t.pixel, t.row, *((t.image,) if batch > 1 else ()))
    return all(step % lanes == 0 for step in steps)


def _multiplier(problem: ContractionProblem) -> int:
    """The depth multiplier: filters of each input channel."""
    return problem.w.shape[0] // problem.groups


def _reach(problem: ContractionProblem, strip: Strip) -> tuple[int, int]:
    """Rows and columns of the image that a thread reads."""
    _, _, *kernel = problem.w.shape
    sides = zip((strip.rows, strip.columns), problem.stride, kernel, problem.dilation, strict=True)
    rows, columns = ((made - 1) * s + (k - 1) * d + 1 for made, s, k, d in sides)
    return rows, columns


def _multiply_adds(problem: ContractionProblem, strip: Strip) -> int:
    return prod(problem.w.shape[2:]) * strip.rows * strip.columns * strip.lanes


def _registers(problem: ContractionProblem, strip: Strip) -> int:
    """Estimates a thread's registers: open sums, filters, a row of the image and its addresses."""
    reach = (problem.w.shape[2] - 1) * problem.dilation[0]
    open_rows = min(strip.rows, reach // problem.stride[0] + 1)
    read = max(1, strip.lanes // _multiplier(problem))
    _, columns = _reach(problem, strip)
    asked = max(1, read * problem.x.itemsize // 4)
    row = columns * (read + asked + 1)
    filters = 1
    if strip.rows > 1 == strip.columns and problem.w.shape[2] > _FEW_ROWS:
        filters += problem.w.shape[3]  # for one column compilers read them a row ahead
    return _BESIDE + (open_rows * strip.columns + filters) * strip.lanes + row


def _blocks(problem: ContractionProblem, strip: Strip) -> int:
    """Blocks that a multiprocessor runs at once, which the kernel's launch bounds demand."""
    threads = _most_threads(problem)
    registers = _registers(problem, strip) + _SPARE
    return max(1, min(1024 // threads, _FILE // (threads * registers)))


def _packs(problem: ContractionProblem, strip: Strip) -> int:
    """Packs of ``lanes`` channels that a block has: about equally many in each block."""
    packs = problem.w.shape[0] // strip.lanes
    blocks = -(-packs * strip.lanes // _CHANNELS)
    return -(-packs // blocks)


def _pitch(problem: ContractionProblem, strip: Strip) -> int:
    """Floats from one tap of a block's filters to the next, in shared memory."""
    return _packs(problem, strip) * strip.lanes + 4


def _strips(problem: ContractionProblem, strip: Strip) -> tuple[int, int]:
    """Strips of one image, down and across."""
    y = problem.y
    return -(-y.rows // strip.rows), -(-y.columns // strip.columns)


# Fitted to what 156 depthwise convolutions and gradients of seven networks took on an H200 at
# batches 1, 32 and 128: a half of the first choices are within 3 % of the fastest.  So are they of
# 49 random ones, which were not fitted to.
_BYTES = 60.0
"""Bytes that a multiprocessor gets from the L2 cache in a cycle."""
_START = 500.0
"""Cycles until a thread has its filters and its first row."""
_ROW = 80.0
"""Cycles that a thread waits for one row more."""
_EACH = 0.4
"""Cycles that a thread waits for an instruction, where few warps run at once."""
_WAVES = 2
_FETCHED = 2.6
"""Cycles to fetch an instruction that has not run yet."""


def _price(problem: ContractionProblem, strip: Strip, machine: Machine) -> float:
    """Estimates the cycles of a kernel: those of its busiest resource (instructions, accesses, or
    bytes from the L2 cache), and those that its threads wait."""
    tall, wide = _reach(problem, strip)
    size, pixels = problem.x.itemsize, strip.rows * strip.columns
    read = max(1, strip.lanes // _multiplier(problem))
    loads = tall * wide
    filters = strip.rows * prod(problem.w.shape[2:]) * -(-strip.lanes // 4)
    converted = 0 if size == 4 else loads * read
    instructions = _multiply_adds(problem, strip) + converted + 2 * loads + filters
    instructions += pixels * strip.lanes * 4 + 150
    accesses = loads * max(1, read * size / 4) + filters * 2 + pixels * strip.lanes * size / 4
    # Horizontal neighbours share what they read in the L1 cache, vertical ones do not.
    l2_bytes = 32 * (tall * strip.columns * problem.stride[1] * read + pixels * strip.lanes) * size
    blocks = _grid(problem, strip)
    warps = blocks[0] * blocks[1] * -(-_threads(problem, strip) // 32)
    busiest = max(instructions / 4, accesses, l2_bytes / _BYTES)
    resident_warps = _blocks(problem, strip) * _most_threads(problem) // 32
    waves = -(-warps // (machine.multiprocessors * resident_warps))
    code_size = instructions / (problem.w.shape[2] if _is_loop(problem, strip) else 1)
    waiting = waves * (_START + tall * _ROW + instructions * _EACH) + code_size * _FETCHED
    return busiest * warps / machine.multiprocessors + waiting


def _is_loop(problem: ContractionProblem, strip: Strip) -> bool:
    """Whether a filter's rows are a loop: that is few registers and little code, for one row."""
    return strip.rows == 1 and problem.w.shape[2] > _FEW_ROWS


def _most_threads(problem: ContractionProblem) -> int:
    return 128 if prod(problem.w.shape[2:]) <= _FEW_TAPS else 256


def _threads(problem: ContractionProblem, strip: Strip) -> int:
    packs = _packs(problem, strip)
    return _most_threads(problem) // packs * packs


def _grid(problem: ContractionProblem, strip: Strip) -> tuple[int, int]:
    """Blocks along strips, if each thread computes one, and blocks along channels."""
    down, across = _strips(problem, strip)
    packs = _packs(problem, strip)
    strips_at_once = _threads(problem, strip) // packs
    groups = -(-problem.w.shape[0] // (packs * strip.lanes))
    return -(-problem.batch * down * across // strips_at_once), groups


def _rounds(problem: ContractionProblem, strip: Strip, machine: Machine) -> int:
    """Strips that each thread computes one after the other, for which its block keeps the filters:
    so many that the blocks make about two waves."""
    blocks, groups = _grid(problem, strip)
    room = _WAVES * machine.multiprocessors * _blocks(problem, strip)
    return -(-blocks * groups // room)


_NAMES = (
    *("packs", "channels", "strips", "rounds", "count", "across", "down", "top", "left"),
    *("height", "width", "image", "row", "pixel", "rows", "columns", "y"),
)


class DepthwiseKernel(ContractionKernel):
    """Strips of pixels for each thread; a choice is an index of :data:`STRIPS`."""

    name = "depthwise"
    usual_price = 0.5

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if problem.w.shape[1] != 1 or problem.gather is not None:
            return "its groups have more than one input channel"
        if problem.is_integer:
            return "it multiplies int8"
        if problem.planar or problem.x.channel != 1:
            return "its images are planar"
        if problem.before:
            return "it has a prologue"
        results = (problem.y, *problem.others)
        if any(t.channel != 1 or not is_regular(t) for t in results):
            return "pixels of its result are not at regular strides"
        if any(t.offset for t in (problem.x, *results)):
            return "its tensors are not aligned to vectors"
        x = problem.x
        if max(x.rows * x.row, problem.batch * problem.y.rows * problem.y.columns) >= _MOST:
            return "its sizes do not fit 32-bit indices"
        if not strips_for(problem, machine):
            return "its windows do not fit registers and shared memory"
        return None

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return _worth_measuring(problem, machine)

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """Arguments: image, filter, the others, the vectors of the epilogue, the result; then the
        numbers of :meth:`numbers`."""
        strip = STRIPS[choice]
        _, _, *kernel = problem.w.shape
        parts = {
            "T": TYPES[problem.x.dtype],
            "THREADS": _most_threads(problem),
            "BLOCKS": _blocks(problem, strip),
            "LANES": strip.lanes,
            "MULTIPLIER": _multiplier(problem),
            "ROWS": strip.rows,
            "COLUMNS": strip.columns,
            **window_parts(problem),
            "UNROLL": "1" if _is_loop(problem, strip) else "",
            "PARAMETERS": parameters_of(problem, _NAMES),
            "VECTORS": _vectors(problem),
            "EPILOGUE": _epilogue(problem),
        }
        source = source_of("depthwise.cu", parts)
        blocks, groups = _grid(problem, strip)
        shared = prod(kernel) * _pitch(problem, strip) * 4
        grid = (-(-blocks // _rounds(problem, strip, machine)), groups, 1)
        return [Launch(source, grid, (_threads(problem, strip), 1, 1), shared)]

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        strip = STRIPS[choice]
        x, y = problem.x, problem.y
        down, across = _strips(problem, strip)
        packs = _packs(problem, strip)
        return [
            packs,
            problem.w.shape[0],
            _threads(problem, strip) // packs,
            _rounds(problem, strip, machine),
            problem.batch * down * across,
            across,
            down,
            *(before for before, _ in problem.padding),
            x.rows,
            x.columns,
            x.image,
            x.row,
            x.pixel,
            y.rows,
            y.columns,
            step_of(y),
            *map(step_of, problem.others),
        ]

    def shape(self, choice: int) -> str:
        return str(STRIPS[choice])


def _vectors(problem: ContractionProblem) -> str:
    """The loads of the epilogue's vectors for a thread's channels."""
    code = Code()
    for i in range(len(problem.vectors)):
        code.line(f"float b{i}[L];")
        code.line(f"md_load<L>(b{i}, v{i} + k);")
    return str(code).rstrip("\n")


def _epilogue(problem: ContractionProblem) -> str:
    """The epilogue of ``L`` channels of pixel ``m``."""
    code = Code()
    for i in range(len(problem.others)):
        code.line(f"float a{1 + i}[L];")
        code.line(f"md_load<L>(a{1 + i}, x{1 + i} + m * P_other{i} + k);")
    compute_stages(code, problem, "L", "result")
    return str(code).rstrip("\n")
