"""Depthwise convolutions of planes in float32, and the gradients of their images.

Moving the image is all of the work, so a thread only has to read each number from memory once.  It
makes a few rows of a column and keeps the filter and the open sums in registers; neighbours across
a warp read the same lines of the first cache.  A warp may span several rows and planes, so that
small planes fill it, too.

The gradient of an image gathers as the convolution does, with the filter turned.  With a stride s,
only every s-th tap meets the result's gradient, others for each of s rows; so a thread makes whole
groups of s x s pixels, for which the compiler knows the taps.
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
from .text import compute_stages, parameters_of, source_of

ROWS = (1, 2, 4, 7, 8, 14, 16)
"""Of a thread, in groups of as many as the stride has where it makes a gradient; these are the
choices."""
MOST_TAPS = 7
"""Rows and columns of a window."""
_REGISTERS = 112
_FEW_REGISTERS = 48
"""Of numbers and sums: with more, blocks have registers for half as many threads."""
_FURTHEST = 48
"""Rows or columns of a patch."""
_THREADS = 256
_MEASURED = 4
MOST = 1 << 30


@dataclass(frozen=True)
class Patch:
    """What a thread reads along one axis, and what it makes of it.

    Attributes:
        made: numbers that it makes.
        read: numbers that it reads.
        step: between those of neighbours.
        before: how far in front of a multiple of the step it begins to read.
        first: for gradients, the tap that leads from the first to the first, in steps of one.
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
    """Of so many results, or groups of pixels of a gradient."""
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


def why_no_planes(problem: ContractionProblem) -> str | None:
    """Why a problem is no depthwise convolution of planes, or one that no thread can compute."""
    filters, channels, *window = problem.w.shape
    if problem.x.dtype != "float32" or problem.gather is not None:
        return f"it is in {problem.x.dtype}, or its image is gathered"
    if channels != 1 or filters != problem.groups:
        return "its groups have more than one channel or filter"
    if any(t.pixel != 1 for t in (problem.x, problem.y, *problem.others)):
        return "its pixels do not lie side by side"
    if problem.before:
        return "something comes before it"
    if max(window) > MOST_TAPS:
        return f"its window is larger than {MOST_TAPS} x {MOST_TAPS}"
    x, y = problem.x, problem.y
    sizes = (problem.batch * t.channels * t.rows * t.columns for t in (x, y))
    reach = (t.channels * t.channel + t.rows * t.row for t in (x, y, *problem.others))
    return "it is too large for numbers of 32 bits" if max(*sizes, *reach) >= MOST else None


class PlanesKernel(ContractionKernel):
    """A column of some rows for each thread; a choice is how many rows, or groups of them."""

    name = "planes"
    directions = ("forward", IMAGE_GRADIENT)

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        reason = why_no_planes(problem)
        if reason is not None:
            return reason
        return None if possible(problem) else "its windows do not fit registers"

    def price(self, problem: ContractionProblem) -> float:
        return 0.5

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return sorted(possible(problem), key=lambda c: _price(problem, c, machine))[:_MEASURED]

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """Arguments: what is read, filter, the others, the vectors of what comes after, what is
        made; then the numbers of :meth:`numbers`."""
        down, across = _patches(problem, choice)
        back = problem.direction == IMAGE_GRADIENT
        names = ("units", "across", "down", "channels", "top", "left", "image", "channel", "row")
        sizes = ("height", "width", "rows", "columns", "begin", "y_image", "y_channel", "y_row")
        places = [
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
            **dict(zip(("KR", "KC"), problem.w.shape[2:], strict=True)),
            **dict(zip(("SR", "SC"), problem.stride, strict=True)),
            **dict(zip(("DR", "DC"), problem.dilation, strict=True)),
            "BACK": int(back),
            "FIRST_ROW": down.first,
            "FIRST_COLUMN": across.first,
            "STEP_DOWN": down.step,
            "STEP_ACROSS": across.step,
            "RESULTS": _gradients(across.made) if back else _results(problem),
            "PARAMETERS": parameters_of(
                problem, (*names, *sizes, "pairs", *places), distances=False
            ),
        }
        blocks = -(-_units(problem, choice) // _THREADS)
        return [Launch(source_of("planes.cu", parts), (blocks, 1, 1), (_THREADS, 1, 1))]

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
        # A gradient begins at its own offset.
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
    """Down and across."""
    back = problem.direction == IMAGE_GRADIENT
    geometry = (problem.w.shape[2:], problem.stride, problem.dilation, problem.padding)
    down, across = (
        patch_of(groups, k, s, d, p, back)
        for groups, k, s, d, (p, _) in zip((ROWS[choice], 1), *geometry, strict=True)
    )
    return down, across


def _grid(problem: ContractionProblem, choice: int) -> tuple[int, int]:
    """Units across and down a plane."""
    down, across = _patches(problem, choice)
    made = problem.made
    return -(-made.columns // across.made), -(-made.rows // down.made)


def _units(problem: ContractionProblem, choice: int) -> int:
    return problem.batch * problem.made.channels * prod(_grid(problem, choice))


def _registers(problem: ContractionProblem, choice: int) -> int:
    """Of the filter, the sums and a row."""
    down, across = _patches(problem, choice)
    columns = min(across.read, problem.w.shape[3] * across.made)
    return prod(problem.w.shape[2:]) + down.made * across.made + columns


def possible(problem: ContractionProblem) -> list[int]:
    """The choices that fit, none larger than the plane needs."""
    found = []
    for choice in range(len(ROWS)):
        patches = _patches(problem, choice)
        if choice and _grid(problem, choice - 1)[1] == 1:
            break
        few = _registers(problem, choice) <= _REGISTERS
        if few and max(patch.read for patch in patches) <= _FURTHEST:
            found.append(choice)
    return found


def _price(problem: ContractionProblem, choice: int, machine: Machine) -> float:
    """Instructions of the threads of a multiprocessor, about."""
    down, across = _patches(problem, choice)
    taps, columns = prod(problem.w.shape[2:]), min(across.read, problem.w.shape[3] * across.made)
    each = 60 + taps + 2 * down.read * columns + taps * down.made
    waves = _units(problem, choice) / (1024 * machine.multiprocessors)
    return each * max(1.0, waves)


def _results(problem: ContractionProblem) -> str:
    """What comes after, and where it goes."""
    code = Code()
    code.line("const float (&a0)[ROWS] = sum[0];")
    code.line("float r[ROWS];")
    for i in range(len(problem.vectors)):
        code.line(f"float b{i}[ROWS];")
        code.line("#pragma unroll")
        code.line(f"for (int j = 0; j < ROWS; j++) b{i}[j] = md_value(v{i}[k]);")
    for i in range(len(problem.others)):
        code.line(f"float a{1 + i}[ROWS];")
        place = f"P_begin{i} + n * P_image{i} + k * P_channel{i} + (row + j) * P_row{i} + column"
        code.line("#pragma unroll")
        code.line("for (int j = 0; j < ROWS; j++)")
        code.line(f"  a{1 + i}[j] = row + j < (int)P_rows ? md_value(x{1 + i}[{place}]) : 0.0f;")
    compute_stages(code, problem, "ROWS")
    code.line(f"float *to = {_TO};")
    code.line("#pragma unroll")
    code.line("for (int j = 0; j < ROWS; j++, to += P_y_row)")
    code.line("  if (row + j < (int)P_rows) *to = r[j];")
    return str(code).rstrip("\n")


_TO = "y + P_begin + n * P_y_image + k * P_y_channel + row * P_y_row + column"


def _gradients(columns: int) -> str:
    code = Code()
    code.line(f"float *to = {_TO};")
    code.line("#pragma unroll")
    with code.block("for (int a = 0; a < ROWS; a++, to += P_y_row)"):
        code.line("if (row + a >= (int)P_rows) break;")
        if columns == 2:
            with code.block("if (P_pairs)"):
                code.line("const float two[2] = {sum[0][a], sum[1][a]};")
                code.line("md_store<2>(to, two);")
                code.line("continue;")
        code.line("#pragma unroll")
        code.line("for (int b = 0; b < COLUMNS; b++)")
        code.line("  if (column + b < (int)P_columns) to[b] = sum[b][a];")
    return str(code).rstrip("\n")
