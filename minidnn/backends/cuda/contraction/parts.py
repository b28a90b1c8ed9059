"""Sums that are computed in parts, side by side into the workspace, and added up by a kernel.

Those of results are planar, one filter's pixels of all images behind each other; all are always
added in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Generic, TypeVar

from ....runtime.operand import KernelArgument
from ...codegen.code import Code
from ..kernels import Launch
from ..memory import aligned
from ..prelude import TYPES
from .problem import Addresses, ContractionProblem
from .text import compute_stages, parameters_of, source_of

_THREADS = 128
MOST_DOWN = 65535
"""Blocks of a grid in y, where filters or channels are."""
_KEPT = 4
"""So many divisions are worth measuring."""
RESULT = ("filters", "pixels", "plane", "width", "parts")
"""The names of :func:`result_numbers`."""


Shape = TypeVar("Shape")


class Divisions(Generic[Shape]):
    """One number for one of some shapes of blocks and into how many parts sums are divided."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes = tuple(shapes)

    def number(self, shape: int, parts: int) -> int:
        """Of the shape of that index."""
        return (parts - 1) * len(self.shapes) + shape

    def __getitem__(self, number: int) -> tuple[Shape, int]:
        """The shape and the parts."""
        parts, shape = divmod(number, len(self.shapes))
        return self.shapes[shape], parts + 1

    def promising(self, priced: Iterable[tuple[float, int]]) -> list[int]:
        """Of numbers with their prices the cheapest first, of each shape two at most."""
        kept: list[int] = []
        for _, number in sorted(set(priced)):
            shape, _ = self[number]
            of_shape = [one for one in kept if self[one][0] == shape]
            if len(of_shape) < 2 and len(kept) < _KEPT:
                kept.append(number)
        return kept

    def shown(self, number: int) -> str:
        """As text."""
        shape, parts = self[number]
        return f"{shape} in {parts} parts" if parts > 1 else str(shape)


def filled(slabs: int, parts: int) -> int:
    """How many of so many parts have slabs: each is as deep as the first, so the last ones may
    begin behind the end."""
    return -(-slabs // -(-slabs // parts))


def pixels_of(problem: ContractionProblem) -> int:
    return problem.batch * problem.y.rows * problem.y.columns


def _width(problem: ContractionProblem) -> int:
    """Of a filter in a part: pixels, to whole chunks."""
    return -(-pixels_of(problem) // 4) * 4


def part_bytes(problem: ContractionProblem, parts: int) -> int:
    """Of all parts; nothing where there is one."""
    return parts * problem.w.shape[0] * _width(problem) * 4 if parts > 1 else 0


def without_stages(problem: ContractionProblem) -> ContractionProblem:
    """What computes a part: its result is the first part."""
    y, plane = problem.y, problem.y.rows * problem.y.columns
    part = replace(y, image=plane, channel=_width(problem), row=y.columns, pixel=1, offset=0)
    return replace(problem, y=part, stages=(), others=(), vectors=())


def result_numbers(problem: ContractionProblem, parts: int) -> list[int]:
    plane = problem.y.rows * problem.y.columns
    return [problem.w.shape[0], pixels_of(problem), plane, _width(problem), parts]


def place_names(problem: ContractionProblem) -> tuple[str, ...]:
    """The names of :func:`place_numbers`."""
    tensors = ["y", *(f"x{1 + i}" for i in range(len(problem.others)))]
    return ("whole", *(f"{what}_{t}" for t in tensors for what in ("offset", "image", "channel")))


def place_numbers(problem: ContractionProblem) -> list[int]:
    """Whether four pixels from a multiple of four on are always a chunk of one image, and where
    the result and the others lie."""
    tensors = (problem.y, *problem.others)
    places = [number for t in tensors for number in (t.offset, t.image, t.channel)]
    whole = not any(number % 4 for number in (problem.y.rows * problem.y.columns, *places))
    return [int(whole), *places]


def total_numbers(problem: ContractionProblem, parts: int) -> list[int]:
    """What the kernel of :func:`print_total` takes after its pointers."""
    return [*result_numbers(problem, parts), *place_numbers(problem)]


def print_total(problem: ContractionProblem) -> Launch:
    """Adds up parts, which are the image, and computes all stages."""
    names = (*RESULT, *place_names(problem))
    text = {
        "PARAMETERS": parameters_of(problem, names, distances=False),
        "EPILOGUE": planar_epilogue_of(problem),
    }
    across = -(-_width(problem) // (4 * _THREADS))
    return Launch(source_of("parts.cu", text), (across, problem.w.shape[0], 1), (_THREADS, 1, 1))


def planar_epilogue_of(problem: ContractionProblem) -> str:
    """What comes after, on four pixels of filter ``k`` from pixel ``m`` on, and where they go."""
    code = Code()
    code.line("const int n = m / plane, p = m - n * plane;")
    code.line("int at_image[4], at_pixel[4];  // of each, where the four are not whole")
    with code.block("if (!P_whole)"):
        code.line("#pragma unroll")
        with code.block("for (int j = 0; j < 4; j++)"):
            code.line("at_image[j] = (m + j) / plane;")
            code.line("at_pixel[j] = m + j - at_image[j] * plane;")
    for i in range(len(problem.vectors)):
        code.line(f"const float b{i}[4] = {{v{i}[k], v{i}[k], v{i}[k], v{i}[k]}};")
    for i in range(len(problem.others)):
        t = f"x{1 + i}"
        code.line(f"const float *const from{i} = {t} + P_offset_{t} + k * P_channel_{t};")
        code.line(f"float a{1 + i}[4];")
        code.line(f"if (P_whole) md_load<4>(a{1 + i}, from{i} + n * P_image_{t} + p);")
        one = f"from{i}[at_image[j] * P_image_{t} + at_pixel[j]]"
        code.line("else")
        code.line(f"  for (int j = 0; j < 4; j++) a{1 + i}[j] = m + j < pixels ? {one} : 0.0f;")
    compute_stages(code, problem, "4")
    code.line("float *const to = y + P_offset_y + k * P_channel_y;")
    code.line("if (P_whole) md_store<4>(to + n * P_image_y + p, r);")
    code.line("else")
    code.line("  for (int j = 0; j < 4; j++)")
    code.line("    if (m + j < pixels) to[at_image[j] * P_image_y + at_pixel[j]] = r[j];")
    return str(code).rstrip("\n")


_TOTAL_THREADS = 256
_EACH = 32
"""Numbers of a block, of which each warp adds up some of the parts."""


def filter_part_bytes(problem: ContractionProblem, parts: int) -> int:
    """Of all parts."""
    return aligned(parts * prod(problem.w.shape) * 4)


def print_filter_total(problem: ContractionProblem) -> Launch:
    """Adds up the parts; it takes the arguments of :func:`total_arguments`."""
    source = source_of("stem_total.cu", {"T": TYPES[problem.w.dtype]})
    blocks = -(-prod(problem.w.shape) // _EACH)
    return Launch(source, (blocks, 1, 1), (_TOTAL_THREADS, 1, 1), 4 * _TOTAL_THREADS)


def total_arguments(problem: ContractionProblem, at: Addresses, parts: int) -> list[KernelArgument]:
    """Parts and result, the size of a part, and how many there are."""
    return [at.workspace, at.w, prod(problem.w.shape), parts]


def filter_arguments(
    problem: ContractionProblem, at: Addresses, parts: int, numbers: Sequence[int]
) -> list[list[KernelArgument]]:
    """Of a kernel that takes image, gradient, what it makes and its numbers: the result if there is
    one part; else all parts, which the second kernel then takes."""
    y = at.y + problem.y.offset * problem.y.itemsize
    if parts == 1:
        return [[at.x, y, at.w, *numbers]]
    return [[at.x, y, at.workspace, *numbers], total_arguments(problem, at, parts)]
