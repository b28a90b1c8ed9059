"""Depthwise convolutions of NCHW images in float32, and the gradients of their images.

Moving the image is all of the work, so the aim is to read each number from memory once.  A thread
computes a few rows of a column and keeps the filter and the open sums in registers; neighbouring
lanes read the same lines of the L1 cache.  A warp may span several rows and planes, so that small
planes fill it, too.

The gradient of an image gathers as the convolution does, with the filter turned around.  With a
stride s, only every s-th tap meets the result's gradient, others for each of s rows; so a thread
computes whole groups of s x s pixels, for which the compiler knows the taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from ....runtime.operand import KernelArgument
from ...codegen.code import Code
from ..kernels import Launch
from ..machine import Machine
from .kernel import ContractionKernel
from .problem import IMAGE_GRADIENT, Addresses, ContractionProblem
from .text import compute_stages, parameters_of, source_of, window_parts

ROWS = (1, 2, 4, 7, 8, 14, 16)
"""Rows that a thread computes, or of a gradient groups of as many rows as the stride; a choice is
an index of these."""
MOST_TAPS = 7
"""Rows and columns of a window."""
_REGISTERS = 112
_FEW_REGISTERS = 48
"""Of filter, sums and a row: with more, a multiprocessor has registers for half as many blocks."""
_FURTHEST = 48
"""Rows or columns that a patch reads."""
_THREADS = 256
_MEASURED = 4
MOST = 1 << 30


@dataclass(frozen=True)
class Patch:
    """What a thread reads along one axis, and what it computes from that.

    Attributes:
        made: elements that it computes.
        read: elements that it reads.
        step: elements from the first that a thread reads to the first of the next thread.
        before: how many elements in front of its multiple of the step it begins to read.
        first: for gradients, the tap, times the dilation, by which the first element that it reads
            contributes to the first that it computes.
    """

    made: int
    read: int
    step: int
    before: int
    first: int


@cache
def patch_of(
    groups: int, window: int, stride: int, dilation: int, padding: int, back: bool
) -> Patch:
    """The patch of ``groups`` results, or, with ``back``, of groups of a gradient's pixels."""
    if not back:
        read = (groups - 1) * stride + (window - 1) * dilation + 1
        return Patch(groups, read, groups * stride, padding, 0)
    made = groups * stride
    reached = [
        away // stride
        for pixel in range(made)
        for tap in range(window)
        if (away := pixel + padding - tap * dilation) % stride == 0
    ]
    low = min(reached)
    return Patch(made, max(reached) - low + 1, groups, -low, padding - low * stride)


def why_not_depthwise_nchw(problem: ContractionProblem) -> str | None:
    """Why a problem is no depthwise convolution in NCHW that threads can compute; None if it is."""
    filters, channels, *window = problem.w.shape
    if problem.x.dtype != "float32" or problem.gather is not None:
        return f"it is in {problem.x.dtype}, or its image is gathered"
    if channels != 1 or filters != problem.groups:
        return "its groups have more than one channel or filter"
    if any(t.pixel != 1 for t in (problem.x, problem.y, *problem.others)):
        return "its pixels are not contiguous"
    if problem.before:
        return "it has a prologue"
    if max(window) > MOST_TAPS:
        return f"its window is larger than {MOST_TAPS} x {MOST_TAPS}"
    x, y = problem.x, problem.y
    sizes = (problem.batch * t.channels * t.rows * t.columns for t in (x, y))
    reach = (t.channels * t.channel + t.rows * t.row for t in (x, y, *problem.others))
    return "it is too large for 32-bit indices" if max(*sizes, *reach) >= MOST else None


class DepthwiseNchwKernel(ContractionKernel):
    """Some rows of a column for each thread; a choice is an index of :data:`ROWS`."""

    name = "depthwise NCHW"
    directions = ("forward", IMAGE_GRADIENT)
    usual_price = 0.5

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        reason = why_not_depthwise_nchw(problem)
        if reason is not None:
            return reason
        return None if possible(problem) else "its windows do not fit registers"

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return sorted(possible(problem), key=lambda c: _price(problem, c, machine))[:_MEASURED]

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """Arguments: image or dy, filter, the others, the vectors of the epilogue, the result; then
        the numbers of :meth:`numbers`."""
        down, across = _patches(problem, choice)
        back = problem.direction == IMAGE_GRADIENT
        names = ("units", "across", "down", "channels", "top", "left", "image", "channel", "row")
        sizes = ("height", "width", "rows", "columns", "begin", "y_image", "y_channel", "y_row")
        layouts = [
            f"{what}{i}"
            for i in range(len(problem.others))
            for what in ("begin", "image", "channel", "row")
        ]
        registers = _registers(problem, choice)
        parts = {
            "THREADS": _THREADS,
            "BLOCKS": 4 if registers <= _FEW_REGISTERS else 2,
            "ROWS": down.made,
            "COLUMNS": across.made,
            "TALL": down.read,
            "WIDE": across.read,
            **window_parts(problem),
            "BACK": int(back),
            "FIRST_ROW": down.first,
            "FIRST_COLUMN": across.first,
            "STEP_DOWN": down.step,
            "STEP_ACROSS": across.step,
            "RESULTS": _gradients(across.made) if back else _results(problem),
            "PARAMETERS": parameters_of(
                problem, (*names, *sizes, "pairs", *layouts), distances=False
            ),
        }
        blocks = -(-_units(problem, choice) // _THREADS)
        return [Launch(source_of("depthwise_nchw.cu", parts), (blocks, 1, 1), (_THREADS, 1, 1))]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        numbers = self.numbers(problem, choice, machine)
        if problem.direction == IMAGE_GRADIENT:
            return [[at.y + problem.y.offset * problem.y.itemsize, at.w, at.x, *numbers]]
        return [[at.x, at.w, *at.others, *at.vectors, at.y, *numbers]]

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        down, across = _patches(problem, choice)
        back = problem.direction == IMAGE_GRADIENT
        read, made = (problem.y, problem.x) if back else (problem.x, problem.y)
        begin = 0 if back else made.offset
        # The pointer to an image's gradient includes its offset.
        steps = (made.offset, made.row, made.channel, made.image, made.columns)
        return [
            *(_units(problem, choice), *_grid(problem, choice)),
            *(made.channels, down.before, across.before),
            *(read.image, read.channel, read.row, read.rows, read.columns),
            *(made.rows, made.columns, begin, made.image, made.channel, made.row),
            int(all(step % 2 == 0 for step in steps)),
            *(n for t in problem.others for n in (t.offset, t.image, t.channel, t.row)),
        ]

    def shape(self, choice: int) -> str:
        return f"of {ROWS[choice]} rows"


def _patches(problem: ContractionProblem, choice: int) -> tuple[Patch, Patch]:
    """The patches of a thread, down and across."""
    back = problem.direction == IMAGE_GRADIENT
    geometry = (problem.w.shape[2:], problem.stride, problem.dilation, problem.padding)
    down, across = (
        patch_of(groups, k, s, d, p, back)
        for groups, k, s, d, (p, _) in zip((ROWS[choice], 1), *geometry, strict=True)
    )
    return down, across


def _grid(problem: ContractionProblem, choice: int) -> tuple[int, int]:
    """Units, which are threads' tasks, across and down a plane."""
    down, across = _patches(problem, choice)
    made = problem.made
    return -(-made.columns // across.made), -(-made.rows // down.made)


def _units(problem: ContractionProblem, choice: int) -> int:
    """Units of all planes of all images."""
    return problem.batch * problem.made.channels * prod(_grid(problem, choice))


def _registers(problem: ContractionProblem, choice: int) -> int:
    """Registers of a thread for the filter, the sums and a row."""
    down, across = _patches(problem, choice)
    columns = min(across.read, problem.w.shape[3] * across.made)
    return prod(problem.w.shape[2:]) + down.made * across.made + columns


def possible(problem: ContractionProblem) -> list[int]:
    """The choices that fit, none larger than the plane needs."""
    fitting = []
    for choice in range(len(ROWS)):
        patches = _patches(problem, choice)
        if choice and _grid(problem, choice - 1)[1] == 1:
            break
        fits_registers = _registers(problem, choice) <= _REGISTERS
        if fits_registers and max(patch.read for patch in patches) <= _FURTHEST:
            fitting.append(choice)
    return fitting


def _price(problem: ContractionProblem, choice: int, machine: Machine) -> float:
    """Estimates the instructions of a multiprocessor's threads."""
    down, across = _patches(problem, choice)
    taps, columns = prod(problem.w.shape[2:]), min(across.read, problem.w.shape[3] * across.made)
    instructions = 60 + taps + 2 * down.read * columns + taps * down.made
    waves = _units(problem, choice) / (1024 * machine.multiprocessors)
    return instructions * max(1.0, waves)


def _results(problem: ContractionProblem) -> str:
    """The epilogue and the stores of a thread's results."""
    code = Code()
    code.line("const float (&a0)[ROWS] = sum[0];")
    code.line("float r[ROWS];")
    for i in range(len(problem.vectors)):
        code.line(f"float b{i}[ROWS];")
        code.unrolled_line(f"for (int j = 0; j < ROWS; j++) b{i}[j] = md_value(v{i}[k]);")
    for i in range(len(problem.others)):
        code.line(f"float a{1 + i}[ROWS];")
        offset = f"P_begin{i} + n * P_image{i} + k * P_channel{i} + (row + j) * P_row{i} + column"
        code.unrolled_line("for (int j = 0; j < ROWS; j++)")
        code.line(f"  a{1 + i}[j] = row + j < (int)P_rows ? md_value(x{1 + i}[{offset}]) : 0.0f;")
    compute_stages(code, problem, "ROWS")
    code.line(f"float *to = {_TO};")
    code.unrolled_line("for (int j = 0; j < ROWS; j++, to += P_y_row)")
    code.line("  if (row + j < (int)P_rows) *to = r[j];")
    return str(code).rstrip("\n")


_TO = "y + P_begin + n * P_y_image + k * P_y_channel + row * P_y_row + column"


def _gradients(columns: int) -> str:
    """The stores of a thread's pixels of a gradient, by pairs where these are aligned."""
    code = Code()
    code.line(f"float *to = {_TO};")
    with code.unrolled("for (int a = 0; a < ROWS; a++, to += P_y_row)"):
        code.line("if (row + a >= (int)P_rows) break;")
        if columns == 2:
            with code.block("if (P_pairs)"):
                code.line("const float two[2] = {sum[0][a], sum[1][a]};")
                code.line("md_store<2>(to, two);")
                code.line("continue;")
        code.unrolled_line("for (int b = 0; b < COLUMNS; b++)")
        code.line("  if (column + b < (int)P_columns) to[b] = sum[b][a];")
    return str(code).rstrip("\n")
