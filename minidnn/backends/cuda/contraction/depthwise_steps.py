"""Gradients of strided depthwise convolutions for their image, channels last.

Only those taps contribute to a pixel of the image that reach it in an integer of strides.  A
thread computes a step: a block of as many rows and columns as the stride, each pixel by code for
its own taps, so that none is tested in vain.  The least time is that of reading the gradient of the
result and writing that of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import gcd, prod

from ....runtime.operand import KernelArgument
from ...codegen.code import Code
from ..kernels import Launch
from ..machine import Machine
from ..prelude import TYPES
from .kernel import ContractionKernel
from .problem import IMAGE_GRADIENT, Addresses, ContractionProblem
from .text import source_of

_THREADS = 256
_ACCESS = 16  # bytes
_MOST_TAPS = 64
_MOST_SHARED = 48 << 10
_BLOCKS = 8
"""Blocks of a multiprocessor: each reads the filter once."""
_MOST = 1 << 31

#: Rows and columns of dy from the pixel that has the step's indices to one that the step reads.
Offset = tuple[int, int]


class DepthwiseStepsKernel(ContractionKernel):
    """A step for each thread, of all its pixels; there is one choice."""

    name = "depthwise steps"
    directions = (IMAGE_GRADIENT,)
    usual_price = 0.5

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        x, y = problem.x, problem.y
        if problem.w.shape[1] != 1 or problem.w.shape[0] != x.channels:
            return "its groups have more than one channel"
        if problem.is_integer:
            return "it multiplies int8"
        if problem.planar or x.channel != 1 or y.channel != 1:
            return "its channels are not contiguous"
        if problem.stride == (1, 1):
            return "it steps over no pixels"
        if max(prod(problem.w.shape[2:]), prod(problem.stride)) > _MOST_TAPS:
            return f"its window or its stride has more than {_MOST_TAPS} pixels"
        if _shared_bytes(problem) > _MOST_SHARED:
            return "its filter does not fit shared memory"
        reaches = (t.rows * t.row for t in (x, y))
        return (
            "its sizes do not fit 32-bit indices"
            if max(_count(problem), *reaches) >= _MOST
            else None
        )

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return [0]

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """Arguments: filter, dy and the image's gradient, then the numbers of :meth:`numbers`."""
        pixels = _taps_of(problem)
        offsets = sorted({offset for taps in pixels.values() for _, offset in taps})
        text = {
            "T": TYPES[problem.x.dtype],
            "LANES": _lanes(problem),
            "TAPS": prod(problem.w.shape[2:]),
            "GRADIENTS": _gradients(offsets),
            "PIXELS": _pixels(problem, pixels),
        }
        source = source_of("depthwise_steps.cu", text)
        blocks = min(-(-_count(problem) // _THREADS), _BLOCKS * machine.multiprocessors)
        return [Launch(source, (blocks, 1, 1), (_THREADS, 1, 1), _shared_bytes(problem))]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        y = at.y + problem.y.offset * problem.y.itemsize
        return [[at.w, y, at.x, *self.numbers(problem, choice, machine)]]

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        x, y = problem.x, problem.y
        down, across = _steps(problem)
        return [
            *(_count(problem), x.channels, across, down, x.rows, x.columns),
            *(x.image, x.row, x.pixel, y.rows, y.columns, y.image, y.row, y.pixel),
        ]

    def shape(self, choice: int) -> str:
        return "of one step"


def _lanes(problem: ContractionProblem) -> int:
    """Channels of one access."""
    tensors = (problem.x, problem.y)
    steps = (n for t in tensors for n in (t.offset, t.image, t.row, t.pixel))
    return gcd(_ACCESS // problem.x.itemsize, problem.x.channels, *steps)


def _steps(problem: ContractionProblem) -> tuple[int, int]:
    """Steps of one image, down and across."""
    (down, across), x = problem.stride, problem.x
    return -(-x.rows // down), -(-x.columns // across)


def _count(problem: ContractionProblem) -> int:
    """Tasks of threads: a step of a pack of channels each, in all images."""
    packs = problem.x.channels // _lanes(problem)
    return problem.batch * prod(_steps(problem)) * packs


def _shared_bytes(problem: ContractionProblem) -> int:
    """Shared memory of a block, in bytes: the filter, as floats."""
    return prod(problem.w.shape) * 4


def _taps_of(problem: ContractionProblem) -> dict[Offset, list[tuple[int, Offset]]]:
    """For each pixel of a step the taps that read it, and the offsets of dy that they multiply."""
    rows, columns = problem.w.shape[2:]
    taps_by_pixel: dict[Offset, list[tuple[int, Offset]]] = {}
    for pixel in product(*map(range, problem.stride)):
        taps = taps_by_pixel.setdefault((pixel[0], pixel[1]), [])
        for tap in product(range(rows), range(columns)):
            sides = zip(pixel, problem.padding, tap, problem.dilation, strict=True)
            distances = [index + first_padding - i * d for index, (first_padding, _), i, d in sides]
            steps = [
                divmod(distance, s) for distance, s in zip(distances, problem.stride, strict=True)
            ]
            if not any(remainder for _, remainder in steps):
                taps.append((tap[0] * columns + tap[1], (steps[0][0], steps[1][0])))
    return taps_by_pixel


def _name(offset: Offset) -> str:
    """The suffix of an offset's variables in the kernel."""
    return "_".join(f"m{-step}" if step < 0 else str(step) for step in offset)


def _gradients(offsets: Sequence[Offset]) -> str:
    """The loads of dy at these offsets, where they are inside."""
    code = Code()
    for offset in offsets:
        name, (down, across) = _name(offset), offset
        code.line(f"const int r{name} = row + ({down}), q{name} = column + ({across});")
        inside = f"(unsigned int)r{name} < (unsigned int)P_rows"
        inside += f" && (unsigned int)q{name} < (unsigned int)P_columns"
        code.line(f"const bool in{name} = {inside};")
        code.line(f"float g{name}[L];")
        address = f"from + r{name} * P_dy_row + q{name} * P_dy_pixel"
        code.line(f"if (in{name}) md_load<L>(g{name}, {address});")
    return str(code).rstrip("\n")


def _pixels(problem: ContractionProblem, pixels: dict[Offset, list[tuple[int, Offset]]]) -> str:
    """The sums and the store of each pixel of a step that is inside the image."""
    code = Code()
    down, across = problem.stride
    for (y, x), taps in pixels.items():
        target = f"row * {down} + {y}", f"column * {across} + {x}"
        with code.block(f"if ({target[0]} < (int)P_height && {target[1]} < (int)P_width)"):
            code.line("float sum[L] = {};")
            for tap, offset in taps:
                name = _name(offset)
                code.line(f"if (in{name})")
                statement = f"sum[l] = md_fma(weight[{tap} * channels + l], g{name}[l], sum[l]);"
                code.line(f"  for (int l = 0; l < L; l++) {statement}")
            code.line(f"md_store<L>(to + ({target[0]}) * P_row + ({target[1]}) * P_pixel, sum);")
    return str(code).rstrip("\n")
