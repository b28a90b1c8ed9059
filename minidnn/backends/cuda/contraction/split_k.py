"""Split-K: blocks compute partial sums into the workspace, which a second kernel adds up.

Each part is the sum over a range of K (taps of channels, or pixels).  Partial sums of a forward
result are planar: filter after filter, with the pixels of all images.  All are always added in the
same order.  :class:`Divisions` numbers the choices of kernels that split K.
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
"""The largest extent of a grid in y, where filters or channels are."""
_KEPT = 4
"""How many choices are worth measuring."""
RESULT = ("filters", "pixels", "plane", "width", "parts")
"""The names of :func:`result_numbers`."""


Shape = TypeVar("Shape")


class Divisions(Generic[Shape]):
    """Numbers for choices: each stands for the shape of a block and the number of split-K parts."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes = tuple(shapes)

    def number(self, shape: int, parts: int) -> int:
        """The choice of the shape with index ``shape`` and that many parts."""
        return (parts - 1) * len(self.shapes) + shape

    def __getitem__(self, number: int) -> tuple[Shape, int]:
        """The shape of a choice, and its number of parts."""
        parts, shape = divmod(number, len(self.shapes))
        return self.shapes[shape], parts + 1

    def promising(self, priced: Iterable[tuple[float, int]]) -> list[int]:
        """The cheapest few of choices with their prices, at most two of each shape."""
        kept: list[int] = []
        for _, number in sorted(set(priced)):
            shape, _ = self[number]
            of_shape = [other for other in kept if self[other][0] == shape]
            if len(of_shape) < 2 and len(kept) < _KEPT:
                kept.append(number)
        return kept

    def shown(self, number: int) -> str:
        """A choice as text."""
        shape, parts = self[number]
        return f"{shape} in {parts} parts" if parts > 1 else str(shape)


def filled(slabs: int, parts: int) -> int:
    """How many of ``parts`` parts are not empty: all have as many slabs as the first, so the last
    ones may begin after the end."""
    return -(-slabs // -(-slabs // parts))


def pixels_of(problem: ContractionProblem) -> int:
    """Pixels of the result, of all images."""
    return problem.batch * problem.y.rows * problem.y.columns


def filter_blocks(problem: ContractionProblem, filters: int) -> int:
    """How many blocks of so many filters along N make all filters."""
    return -(-problem.w.shape[0] // filters)


def _width(problem: ContractionProblem) -> int:
    """Elements of a filter in a part: its pixels, rounded up to chunks of four."""
    return -(-pixels_of(problem) // 4) * 4


def part_bytes(problem: ContractionProblem, parts: int) -> int:
    """Bytes of all partial sums; 0 where there is one part."""
    return parts * problem.w.shape[0] * _width(problem) * 4 if parts > 1 else 0


def without_stages(problem: ContractionProblem) -> ContractionProblem:
    """The problem of the kernel that computes partial sums: its result is the first part."""
    y, plane = problem.y, problem.y.rows * problem.y.columns
    part = replace(y, image=plane, channel=_width(problem), row=y.columns, pixel=1, offset=0)
    return replace(problem, y=part, stages=(), others=(), vectors=())


def result_numbers(problem: ContractionProblem, parts: int) -> list[int]:
    """Sizes of the result and of its partial sums."""
    plane = problem.y.rows * problem.y.columns
    return [problem.w.shape[0], pixels_of(problem), plane, _width(problem), parts]


def layout_names(problem: ContractionProblem) -> tuple[str, ...]:
    """The names of :func:`layout_numbers`."""
    tensors = ["y", *(f"x{1 + i}" for i in range(len(problem.others)))]
    return ("whole", *(f"{what}_{t}" for t in tensors for what in ("offset", "image", "channel")))


def layout_numbers(problem: ContractionProblem) -> list[int]:
    """Whether four pixels from a multiple of four on are always a chunk of one image, and offset
    and strides of the result and the others."""
    tensors = (problem.y, *problem.others)
    layouts = [number for t in tensors for number in (t.offset, t.image, t.channel)]
    whole = not any(number % 4 for number in (problem.y.rows * problem.y.columns, *layouts))
    return [int(whole), *layouts]


def total_numbers(problem: ContractionProblem, parts: int) -> list[int]:
    """The numbers that the kernel of :func:`print_total` takes after its pointers."""
    return [*result_numbers(problem, parts), *layout_numbers(problem)]


def print_total(problem: ContractionProblem) -> Launch:
    """The kernel that adds up partial sums, which are its image, and computes all stages."""
    names = (*RESULT, *layout_names(problem))
    text = {
        "PARAMETERS": parameters_of(problem, names, distances=False),
        "EPILOGUE": planar_epilogue_of(problem),
    }
    across = -(-_width(problem) // (4 * _THREADS))
    return Launch(
        source_of("split_k_total.cu", text), (across, problem.w.shape[0], 1), (_THREADS, 1, 1)
    )


def planar_epilogue_of(problem: ContractionProblem) -> str:
    """The epilogue and the stores of four pixels of filter ``k`` from pixel ``m`` on."""
    code = Code()
    code.line("const int n = m / plane, p = m - n * plane;")
    code.line("int at_image[4], at_pixel[4];  // of each, where the four are not whole")
    with code.block("if (!P_whole)"), code.unrolled("for (int j = 0; j < 4; j++)"):
        code.line("at_image[j] = (m + j) / plane;")
        code.line("at_pixel[j] = m + j - at_image[j] * plane;")
    for i in range(len(problem.vectors)):
        code.line(f"const float b{i}[4] = {{v{i}[k], v{i}[k], v{i}[k], v{i}[k]}};")
    for i in range(len(problem.others)):
        t = f"x{1 + i}"
        code.line(f"const float *const from{i} = {t} + P_offset_{t} + k * P_channel_{t};")
        code.line(f"float a{1 + i}[4];")
        code.line(f"if (P_whole) md_load<4>(a{1 + i}, from{i} + n * P_image_{t} + p);")
        element = f"from{i}[at_image[j] * P_image_{t} + at_pixel[j]]"
        code.line("else")
        code.line(f"  for (int j = 0; j < 4; j++) a{1 + i}[j] = m + j < pixels ? {element} : 0.0f;")
    compute_stages(code, problem, "4")
    code.line("float *const to = y + P_offset_y + k * P_channel_y;")
    code.line("if (P_whole) md_store<4>(to + n * P_image_y + p, r);")
    code.line("else")
    code.line("  for (int j = 0; j < 4; j++)")
    code.line("    if (m + j < pixels) to[at_image[j] * P_image_y + at_pixel[j]] = r[j];")
    return str(code).rstrip("\n")


_TOTAL_THREADS = 256
_EACH = 32
"""Weights of a block, of which each warp adds up some of the parts."""


def filter_part_bytes(problem: ContractionProblem, parts: int) -> int:
    """Bytes of all partial sums of a filter's gradient."""
    return aligned(parts * prod(problem.w.shape) * 4)


def print_filter_total(problem: ContractionProblem) -> Launch:
    """The kernel that adds up parts of a filter's gradient; it takes :func:`total_arguments`."""
    source = source_of("small_channels_total.cu", {"T": TYPES[problem.w.dtype]})
    blocks = -(-prod(problem.w.shape) // _EACH)
    return Launch(source, (blocks, 1, 1), (_TOTAL_THREADS, 1, 1), 4 * _TOTAL_THREADS)


def total_arguments(problem: ContractionProblem, at: Addresses, parts: int) -> list[KernelArgument]:
    """The addresses of parts and result, the elements of a part, and how many parts there are."""
    return [at.workspace, at.w, prod(problem.w.shape), parts]


def filter_arguments(
    problem: ContractionProblem, at: Addresses, parts: int, numbers: Sequence[int]
) -> list[list[KernelArgument]]:
    """The arguments of a kernel that takes image, gradient, its result and ``numbers``.  With one
    part the result is the filter's gradient; else it is all parts, which a second kernel adds."""
    y = at.y + problem.y.offset * problem.y.itemsize
    if parts == 1:
        return [[at.x, y, at.w, *numbers]]
    return [[at.x, y, at.workspace, *numbers], total_arguments(problem, at, parts)]
