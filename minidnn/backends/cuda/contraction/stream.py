"""1x1 convolutions by ``wgmma``: pixels stream past filters, or both pass through shared memory.

It takes scale, shift and ReLU in front, residuals, and slices on both sides.  Filters stay in
shared memory where all of a block's fit beside a few slabs of pixels; else a slab brings its
channels of both: :func:`why_not_stream`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...cpu.code import Code
from ..arch import shared_limit
from ..dialect import TYPES
from ..kernels import Launch
from .chunks import LANES, is_aligned, is_regular, step_of
from .hopper import ARCH, hopper_text
from .problem import ContractionProblem
from .text import (
    epilogue_of,
    join_of,
    parameters_of,
    source_of,
    template,
    vectors_of,
)
from .tile import is_packed


@dataclass(frozen=True)
class Stream:
    """How many filters a block makes, whether its warp groups share them or the pixels, whether
    filters stay in shared memory, and how many warp groups multiply."""

    filters: int
    halves: bool
    stays: bool = True
    groups: int = 2

    @property
    def columns(self) -> int:
        """Filters of a warp group."""
        return self.filters // (self.groups if self.halves else 1)

    @property
    def pixels(self) -> int:
        """Of a tile."""
        return 64 * (1 if self.halves else self.groups)

    @property
    def threads(self) -> int:
        """Of a block: one warp group loads."""
        return 128 * (self.groups + 1)

    @property
    def slab(self) -> int:
        """Bytes of 64 channels."""
        return 128 * (self.pixels + (0 if self.stays else self.filters))

    @property
    def kind(self) -> tuple[bool, bool, int]:
        return self.halves, self.stays, self.groups

    def __str__(self) -> str:
        passing = "" if self.stays else ", both passing"
        return f"of {self.pixels} pixels by {self.filters} filters{passing}"


STREAMS = (
    *(Stream(filters, False) for filters in (16, 32, 48, 64, 96, 128, 192)),
    *(Stream(filters, True) for filters in (32, 64, 96, 128, 192, 256)),
    *(Stream(filters, False, False, 3) for filters in (64, 96, 128, 192)),
    *(Stream(filters, True, False) for filters in (64, 96, 128, 192, 256)),
    *(Stream(filters, False, True, 3) for filters in (64, 96, 128, 192)),
)

_LEAST_SLABS = 48 << 10
_MOST_SLABS = 128 << 10
"""Bytes of pixels on their way: less does not keep memory busy, more is of no use."""
_LEAST_PASSING = 3
"""Slabs of pixels and filters: of fewer none would be on its way while two groups read."""
_LEAST_PIXELS = 128 * 64
"""Fewer are not enough tiles for blocks that keep their filters."""
_LEAST_PIXELS_PASSING = 64 * 32
_MOST_HELD = {2: 112, 3: 96}
"""Registers of a thread for results and what they are joined with, by the groups of a block."""


def why_not_stream(problem: ContractionProblem, arch: str) -> str | None:
    """Why this kernel does not compute a problem; None if it does."""
    if arch != ARCH:
        return f"{arch} has no wgmma"
    if problem.x.dtype not in ("float16", "bfloat16"):
        return f"it is in {problem.x.dtype}"
    if problem.planar or problem.gather is not None or not problem.is_pointwise:
        return "it is no product of pixels and filters"
    tensors = (problem.x, problem.y, *problem.others)
    if any(not is_aligned(t, problem.batch) for t in tensors):
        return "its tensors are no whole chunks of 8 channels"
    if any(not is_regular(t) for t in tensors):
        return "its pixels do not follow each other"
    if problem.before and not is_packed(problem):
        return "what comes before is not scale, shift and ReLU"
    if problem.w.span >= 1 << 31 or _pixels(problem) >= 1 << 31:
        return "its sizes do not fit 32 bits"
    if not candidates(problem, arch):
        return f"its filters do not fit the shared memory of {arch}"
    return None


def candidates(problem: ContractionProblem, arch: str) -> list[int]:
    """Which of :data:`STREAMS` are worth measuring, the most promising first: one for each way
    to share work, with the least filters that make few rounds over the pixels.

    Three groups, and filters that pass, are measured where something comes before the product: else
    two that keep their filters, or cuDNN's kernels, are as fast.
    """
    filters = problem.w.shape[0]
    limit = shared_limit(arch)
    found = []
    for kind in dict.fromkeys(one.kind for one in STREAMS):
        fitting = [
            (-(-filters // one.filters), not one.stays, one.filters, i)
            for i, one in enumerate(STREAMS)
            if one.kind == kind and _slabs(problem, one, limit)
            if (problem.before or (one.stays and one.groups == 2)) and _is_held(problem, one)
        ]
        found += sorted(fitting)[:1]
    return [i for *_, i in sorted(found)]


def _is_held(problem: ContractionProblem, stream: Stream) -> bool:
    """Whether results, and what they are joined with, fit the registers of a thread."""
    held = stream.columns // 2 + len(problem.others) * (stream.columns // 4 + 8)
    return held <= _MOST_HELD[stream.groups]


def is_worth(problem: ContractionProblem) -> bool:
    """Whether there are enough pixels to keep filters for, or for them to pass."""
    least = _LEAST_PIXELS_PASSING if problem.before else _LEAST_PIXELS
    return _pixels(problem) >= least


def _pixels(problem: ContractionProblem) -> int:
    return problem.batch * problem.y.rows * problem.y.columns


def _fixed(problem: ContractionProblem, stream: Stream) -> int:
    """Bytes of shared memory beside the slabs: what aligns them, filters that stay, results being
    turned, vectors."""
    steps = -(-problem.w.shape[1] // 16)
    part = 16 if stream.columns % 32 else 32
    turned = stream.groups * 4 * 16 * (part + 8) * 4
    staying = steps * stream.filters * 32 if stream.stays else 0
    return 1024 + staying + turned + (steps * 64 if problem.before else 0)


def _slabs(problem: ContractionProblem, stream: Stream, limit: int) -> int:
    """Slabs of 64 channels in the ring, each with two barriers; 0 if there is no room."""
    count = (limit - _fixed(problem, stream)) // (stream.slab + 16)
    if not stream.stays:
        return count if count >= _LEAST_PASSING else 0
    count = min(count, _MOST_SLABS // stream.slab)
    return count if count * stream.slab >= _LEAST_SLABS else 0


_NAMES = ("filters", "chunks", "slabs", "tiles", "pixels", "x", "y")


def sizes_of(problem: ContractionProblem, stream: Stream) -> list[int]:
    """The numbers that the kernel takes."""
    return [
        problem.w.shape[0],
        problem.w.shape[1] // LANES,
        _slabs(problem, stream, shared_limit(ARCH)),
        -(-_pixels(problem) // stream.pixels),
        _pixels(problem),
        step_of(problem.x),
        step_of(problem.y),
        *map(step_of, problem.others),
    ]


def launch_of(problem: ContractionProblem, stream: Stream, multiprocessors: int) -> Launch:
    """The kernel of a problem: a block for each multiprocessor.

    Arguments: image, filter, the others, the vectors of what comes after, those of what comes
    before, the result; then the numbers of :func:`sizes_of`.
    """
    element = TYPES[problem.x.dtype]
    parts = {
        "T": element,
        "N": stream.columns,
        "HALVES": int(stream.halves),
        "STAYS": int(stream.stays),
        "GROUPS": stream.groups,
        "HOPPER": hopper_text(problem.x.dtype, stream.columns),
        "TURN": template("turn.cu"),
        "PARAMETERS": parameters_of(problem, _NAMES),
        "BEFORE": int(bool(problem.before)),
        "BEFORE_VECTORS": _before_vectors(problem),
        "SCALE4": _scale(problem, "k", "slab * 4 + k"),
        "SCALE1": _scale(problem, "0", "slab * 4 + k"),
        "OTHERS": _others(problem),
        "VECTORS": vectors_of(problem),
        "EPILOGUE": epilogue_of(problem, "[part][k]"),
        "JOIN": join_of(problem),
    }
    source = source_of("stream.cu", parts, specific=True)
    slabs = _slabs(problem, stream, shared_limit(ARCH))
    shared = _fixed(problem, stream) + slabs * (stream.slab + 16)
    groups = -(-problem.w.shape[0] // stream.filters)
    tiles = -(-_pixels(problem) // stream.pixels)
    blocks = min(tiles, max(1, multiprocessors // groups))
    return Launch(source, (blocks, groups, 1), (stream.threads, 1, 1), shared)


def _before_vectors(problem: ContractionProblem) -> str:
    """Scale and shift, those that a thread needs for a product side by side: of channels 2 i,
    2 i + 1, 2 i + 8 and 2 i + 9 of sixteen for lane i of four."""
    if not problem.before:
        return ""
    scale, shift = (argument.index for argument in problem.before[0].arguments[1:])
    code = Code()
    code.line("unsigned int *const scales = (unsigned int *)(md_shared + (vectors - begins));")
    with code.block("for (int i = threadIdx.x; i < steps * 4; i += GROUPS * 128)"):
        code.line("const int q = i / 4 * 16 + i % 4 * 2;")
        code.line("const bool second = i / 4 * 2 + 1 < chunks;")
        for place, (vector, high) in enumerate(
            ((scale, False), (scale, True), (shift, False), (shift, True))
        ):
            read = f"*(const unsigned int *)(u{vector} + q{' + 8' if high else ''})"
            read = f"second ? {read} : 0u" if high else read
            code.line(f"scales[i * 4 + {place}] = {read};")
    return str(code).rstrip("\n")


def _scale(problem: ContractionProblem, index: str, step: str) -> str:
    """What comes before, on sixteen rows of sixteen channels in a warp's registers."""
    if not problem.before:
        return ""
    code = Code()
    code.line(f"const uint4 s = *(const uint4 *)(scales + (({step}) * 4 + (lane & 3)) * 4);")
    for i, (scale, shift) in enumerate((("x", "z"), ("x", "z"), ("y", "w"), ("y", "w"))):
        code.line(f"a[{index}][{i}] = scaled<T>(a[{index}][{i}], s.{scale}, s.{shift});")
    return str(code).rstrip("\n")


def _others(problem: ContractionProblem) -> str:
    """The other tensors, asked for at once, long before they are used."""
    code = Code()
    for i in range(len(problem.others)):
        code.line(f"uint4 p{i}[N / PART][TURNS];")
        code.line("#pragma unroll")
        with code.block("for (int part = 0; part < N / PART; part++)"):
            code.line("#pragma unroll")
            with code.block("for (int k = 0; k < TURNS; k++)"):
                code.line("const long long m = m1 + k * ROWS;")
                code.line("const bool inside = m < P_pixels && n1 + part * PART < filters;")
                place = f"*(const uint4 *)(x{1 + i} + m * P_other{i} + n1 + part * PART)"
                code.line(f"if (inside) p{i}[part][k] = {place};")
    return str(code).rstrip("\n")
