"""1x1 convolutions by ``wgmma``: filters stay in shared memory, pixels stream past them.

It takes scale, shift and ReLU in front, residuals, and slices on both sides; all filters of a
block, and a few slabs of pixels, must fit shared memory: :func:`why_not_stream`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....cache import digest
from ...cpu.code import Code
from ..dialect import TYPES
from ..kernels import KernelSource, Launch
from ..sequence.mapping import shared_limit
from .halo import ARCH
from .hopper import hopper_text
from .problem import ContractionProblem
from .text import compute_stages, fill, load_vectors, parameters_of, template, unpack_others
from .tile import LANES, is_aligned, is_packed, is_regular, step_of


@dataclass(frozen=True)
class Stream:
    """How many filters a block makes, and whether its two warp groups share them or the pixels."""

    filters: int
    halves: bool

    @property
    def columns(self) -> int:
        """Filters of a warp group."""
        return self.filters // (2 if self.halves else 1)

    @property
    def pixels(self) -> int:
        """Of a tile."""
        return 64 if self.halves else 128

    def __str__(self) -> str:
        return f"of {self.pixels} pixels by {self.filters} filters"


STREAMS = (
    *(Stream(filters, False) for filters in (16, 32, 48, 64, 96, 128)),
    *(Stream(filters, True) for filters in (32, 64, 96, 128, 192, 256)),
)

_THREADS = 384
_LEAST_SLABS = 48 << 10
_MOST_SLABS = 128 << 10
"""Bytes of pixels on their way: less does not keep memory busy, more is of no use."""
_LEAST_PIXELS = 128 * 64
"""Fewer are not enough tiles for blocks that keep their filters."""


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
    to share work, with the least filters that make few rounds over the pixels."""
    filters = problem.w.shape[0]
    limit = shared_limit(arch)
    found = []
    for halves in (False, True):
        fitting = [
            (-(-filters // one.filters), one.filters, i)
            for i, one in enumerate(STREAMS)
            if one.halves == halves and _slabs(problem, one, limit)
        ]
        found += sorted(fitting)[:1]
    return [i for _, _, i in sorted(found)]


def is_worth(problem: ContractionProblem) -> bool:
    """Whether there are enough pixels to keep filters for."""
    return _pixels(problem) >= _LEAST_PIXELS


def _pixels(problem: ContractionProblem) -> int:
    return problem.batch * problem.y.rows * problem.y.columns


def _fixed(problem: ContractionProblem, stream: Stream) -> int:
    """Bytes of shared memory beside the slabs: what aligns them, filters, results being turned,
    vectors."""
    steps = -(-problem.w.shape[1] // 16)
    part = 16 if stream.columns % 32 else 32
    turned = 8 * 16 * (part + 8) * 4
    return 1024 + steps * stream.filters * 32 + turned + (steps * 64 if problem.before else 0)


def _slabs(problem: ContractionProblem, stream: Stream, limit: int) -> int:
    """Slabs of 64 channels in the ring, each with two barriers; 0 if there is no room."""
    slab = stream.pixels * 128
    room = limit - _fixed(problem, stream)
    count = min(room // (slab + 16), _MOST_SLABS // slab)
    return count if count * slab >= _LEAST_SLABS else 0


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
        "HOPPER": hopper_text(problem.x.dtype, stream.columns),
        "PARAMETERS": parameters_of(problem, _NAMES),
        "BEFORE": int(bool(problem.before)),
        "BEFORE_VECTORS": _before_vectors(problem),
        "SCALE4": _scale(problem, "k", "slab * 4 + k"),
        "SCALE1": _scale(problem, "0", "slab * 4 + k"),
        "OTHERS": _others(problem),
        "VECTORS": _vectors(problem),
        "EPILOGUE": _epilogue(problem),
    }
    text = fill(template("stream.cu"), parts)
    name = f"stream_{digest(text)[:20]}"
    source = KernelSource(name, text.replace("$NAME$", name), specific=True)
    slabs = _slabs(problem, stream, shared_limit(ARCH))
    shared = _fixed(problem, stream) + slabs * (stream.pixels * 128 + 16)
    groups = -(-problem.w.shape[0] // stream.filters)
    tiles = -(-_pixels(problem) // stream.pixels)
    blocks = min(tiles, max(1, multiprocessors // groups))
    return Launch(source, (blocks, groups, 1), (_THREADS, 1, 1), shared)


def _before_vectors(problem: ContractionProblem) -> str:
    """Scale and shift, those that a thread needs for a product side by side: of channels 2 i,
    2 i + 1, 2 i + 8 and 2 i + 9 of sixteen for lane i of four."""
    if not problem.before:
        return ""
    scale, shift = (argument.index for argument in problem.before[0].arguments[1:])
    code = Code()
    code.line("unsigned int *const scales = (unsigned int *)(md_shared + (vectors - begins));")
    with code.block("for (int i = threadIdx.x; i < steps * 4; i += 256)"):
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


def _vectors(problem: ContractionProblem) -> str:
    """The vectors of what comes after, for the filters whose results a thread writes."""
    code = Code()
    load_vectors(code, problem, "some")
    return str(code).rstrip("\n")


def _epilogue(problem: ContractionProblem) -> str:
    code = Code()
    unpack_others(code, problem, "[part][k]")
    compute_stages(code, problem)
    return str(code).rstrip("\n")
