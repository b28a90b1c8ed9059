"""1x1 convolutions by ``wgmma``: pixels stream past filters, or both pass through shared memory.

One warp group loads slabs of 64 channels into a ring in shared memory, and others multiply.
The kernel fuses a prologue of scale, shift and ReLU, or the producer of the gradient that it reads,
an epilogue with residuals, and an epilogue reduction; it reads and writes slices.  The filters of a
block stay in shared memory where they fit beside a few slabs of pixels; else a slab has its
channels of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....runtime.operand import KernelArgument
from ...codegen.code import Code
from ..kernels import Launch
from ..machine import Machine
from ..prelude import TYPES
from ..tensor import LANES, is_aligned, is_regular, step_of
from . import epilogue_reduction_text, stream_producer
from .epilogue_reduction_text import (
    partial_sum_reduction,
    registers_of,
    sums_text,
    tile_partial_sums,
)
from .kernel import UNFUSED, ContractionKernel
from .problem import Addresses, ContractionProblem
from .split_k import filter_blocks, pixels_of
from .stream_producer import producer_text, tensors_of
from .text import (
    ARCH,
    compute_stages,
    fill,
    hopper_text,
    parameters_of,
    reconvergence_barrier,
    source_of,
)
from .tile import is_packed


@dataclass(frozen=True)
class Stream:
    """The tile shape of a block.

    Attributes:
        filters: N of a tile.
        stays: whether all channels of these filters stay in shared memory.
        groups: warp groups that multiply.
    """

    filters: int
    stays: bool = True
    groups: int = 2

    @property
    def splits_n(self) -> bool:
        """Whether the warp groups divide N: each takes all pixels of a slab and its part of the
        filters; else they divide M."""
        return not self.stays and self.groups == 2

    @property
    def columns(self) -> int:
        """Filters of a warp group, which are N of its ``wgmma``."""
        return self.filters // (self.groups if self.splits_n else 1)

    @property
    def pixels(self) -> int:
        """M of a tile."""
        return 64 * (1 if self.splits_n else self.groups)

    @property
    def lanes(self) -> int:
        """Threads that write a row of a warp group's filters together, a chunk each at a time."""
        return next(lanes for lanes in (16, 8, 4, 2) if self.columns % (8 * lanes) == 0)

    def adds(self, sums: int) -> bool:
        """Whether ``sums`` numbers for each filter that a thread writes fit its registers, beside
        its accumulators."""
        kept = sums * self.columns // self.lanes
        return self.columns // 2 + kept <= _MOST_SUMS[self.groups]

    @property
    def kind(self) -> tuple[bool, int]:
        """How work is shared: of each kind one stream is measured."""
        return self.stays, self.groups

    def __str__(self) -> str:
        passing = "" if self.stays else ", both passing"
        return f"of {self.pixels} pixels by {self.filters} filters{passing}"


STREAMS = (
    *(Stream(filters) for filters in (16, 32, 48, 64, 96, 128, 192)),
    *(Stream(filters, False, 3) for filters in (64, 96, 128, 192)),
    *(Stream(filters, False) for filters in (64, 96, 128, 192, 256)),
    *(Stream(filters, True, 3) for filters in (64, 96, 128, 192)),
)

_MOST_SUMS = {2: 120, 3: 88}
"""Registers of a thread for accumulators and sums, by the number of groups that multiply."""
_MOST_BESIDE_MAKERS = 2
"""Groups that multiply beside one that computes a producer: more have too few registers each."""
_LEAST_SLABS = 48 << 10
_MOST_SLABS = 128 << 10
"""Bytes of pixels in flight: fewer do not keep memory busy, more are of no use."""
_MOST_SLABS_MADE = 120 << 10
"""The most beside a group that computes the producer; more have not been measured."""
_LEAST_PASSING = 3
"""Slabs of pixels and filters: with fewer, none would be in flight while two groups read."""
_READ_AGAIN = 32
"""How many results of a pixel take as much work as reading the pixel again."""
_LEAST_PIXELS = 128 * 64
"""Fewer pixels are not enough tiles for blocks that keep their filters."""
_LEAST_PIXELS_MADE = 64 * 32
"""The same where a prologue or a producer is fused."""


class StreamKernel(ContractionKernel):
    """1x1 convolutions; a choice is an index of :data:`STREAMS`."""

    name = "stream"
    fuses_reduction = True
    fuses_producer = True
    usual_price = 0.7

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if machine.arch != ARCH:
            return f"{machine.arch} has no wgmma"
        if problem.x.dtype not in ("float16", "bfloat16"):
            return f"it is in {problem.x.dtype}"
        if problem.planar or problem.gather is not None or not problem.is_pointwise:
            return "it is no product of pixels and filters"
        tensors = (problem.x, problem.y, *problem.others)
        if problem.before and problem.producer is not None:
            return "it has another prologue"
        if any(not is_aligned(t, problem.batch) for t in tensors):
            return "its tensors are not aligned to vectors of 8 channels"
        if any(not is_regular(t) for t in tensors):
            return "its pixels are not at regular strides"
        if problem.before and not is_packed(problem):
            return "its prologue is not scale, shift and ReLU"
        if problem.w.span >= 1 << 31 or pixels_of(problem) >= 1 << 31:
            return "its sizes do not fit 32-bit indices"
        for reason in (epilogue_reduction_text.why_not(problem), stream_producer.why_not(problem)):
            if reason is not None:
                return reason
        if not self.choices(problem, machine):
            return f"its filters do not fit the shared memory of {machine.arch}"
        return None

    def why_slow(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if problem.is_unfused:
            return UNFUSED
        fuses_before = problem.before or problem.producer is not None
        least = _LEAST_PIXELS_MADE if fuses_before else _LEAST_PIXELS
        # With fewer, it pays neither to keep filters in shared memory nor to stream them.
        return None if pixels_of(problem) >= least else f"it has fewer than {least} pixels"

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        """The stream with the least work of each kind.

        Streams whose filters pass are measured where scale, shift and ReLU are the prologue: else
        those whose filters stay, or cuDNN's kernels, are as fast.
        """
        limit = machine.shared_bytes
        fitting = [
            i
            for i, stream in enumerate(STREAMS)
            if (stream.stays or problem.before)
            and _has_room(problem, stream)
            and _slabs(problem, stream, limit)
        ]
        cheapest: dict[tuple[bool, int], int] = {}
        for i in sorted(fitting, key=lambda i: _work(problem, STREAMS[i])):
            cheapest.setdefault(STREAMS[i].kind, i)
        return sorted(cheapest.values(), key=lambda i: _order(STREAMS[i]))

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """A kernel with a block for each multiprocessor.

        Arguments: image, filter, the others, the vectors of the epilogue, those of the prologue and
        the result; of a producer its operands and its result; of an epilogue reduction what it
        reads and stores, and the partial sums; then the numbers of :meth:`numbers`.  A second
        kernel, which combines the partial sums, takes these and the reduction's results.
        """
        stream = STREAMS[choice]
        element = TYPES[problem.x.dtype]
        parts = {
            "T": element,
            "N": stream.columns,
            "SPLITS_N": int(stream.splits_n),
            "STAYS": int(stream.stays),
            "GROUPS": stream.groups,
            "HOPPER": hopper_text(problem.x.dtype, stream.columns),
            "PARAMETERS": parameters_of(
                problem,
                (*_NAMES, *stream_producer.names(problem), *epilogue_reduction_text.names(problem)),
                results=[
                    *stream_producer.parameters(problem),
                    *epilogue_reduction_text.parameters(problem),
                ],
            ),
            **sums_text(problem, stream.lanes // 2),
            **producer_text(problem),
            "BEFORE": int(bool(problem.before)),
            "BEFORE_VECTORS": _before_vectors(problem),
            "SCALE4": _scale(problem, "k", "slab * 4 + k"),
            "SCALE1": _scale(problem, "0", "slab * 4 + k"),
            "JOINED": max(1, len(problem.others)),
            "BEHIND": len(problem.vectors),
            "BEHIND_VECTORS": _behind_vectors(problem),
            "BEHIND_NUMBERS": _behind_numbers(problem),
            "OTHERS": _others(problem),
            "NEXT_OTHERS": "    ask(tile + gridDim.x);" if problem.others else "",
            "ARRIVED": "    copies_end();" if problem.others else "",
            "READ": _read(problem),
            "EPILOGUE": _epilogue(problem),
            "JOIN": reconvergence_barrier(problem),
        }
        source = source_of("stream.cu", parts, specific=True)
        slabs = _slabs(problem, stream, machine.shared_bytes)
        assert slabs, f"{problem.describe()} does not fit a stream {stream}"
        slab = _slab_bytes(problem, stream) + _barrier_bytes(problem)
        shared = _fixed(problem, stream) + slabs * slab
        groups = filter_blocks(problem, stream.filters)
        blocks = _blocks(problem, stream, machine)
        # One warp group loads, and one may compute the producer.
        threads = 128 * (stream.groups + (1 if problem.producer is None else 2))
        first = Launch(source, (blocks, groups, 1), (threads, 1, 1), shared)
        if problem.reduction is None:
            return [first]
        return [first, partial_sum_reduction(problem, stream.pixels, blocks)]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        producer = problem.producer
        reads: list[KernelArgument] = [at.x, at.w, *at.others, *at.vectors, *at.before, at.y]
        if producer is not None:
            tensors = enumerate(producer.tensors)
            first, *others = (at.producer[i] + t.offset * t.itemsize for i, t in tensors)
            reads = [first, *reads[1:], *others, *at.producer[1 + len(others) :], at.x]
        return epilogue_reduction_text.arguments(
            problem, reads, at, self.numbers(problem, choice, machine)
        )

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        if problem.reduction is None:
            return 0
        stream = STREAMS[choice]
        blocks = _blocks(problem, stream, machine)
        return tile_partial_sums(problem, stream.pixels, blocks).bytes

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        stream = STREAMS[choice]
        return [
            problem.w.shape[0],
            problem.w.shape[1] // LANES,
            _slabs(problem, stream, machine.shared_bytes),
            -(-pixels_of(problem) // stream.pixels),
            pixels_of(problem),
            step_of(problem.x if problem.producer is None else problem.producer.tensors[0]),
            step_of(problem.y),
            *stream_producer.steps(problem),
            *epilogue_reduction_text.steps(problem),
            *map(step_of, problem.others),
        ]

    def shape(self, choice: int) -> str:
        return str(STREAMS[choice])


def _order(stream: Stream) -> tuple[bool, int]:
    """The key that sorts choices: first streams whose filters stay, of these first most groups."""
    return not stream.stays, -stream.groups


def _work(problem: ContractionProblem, stream: Stream) -> int:
    """The work for a pixel, in results that are computed, with those of filters that do not exist.
    Each round reads the pixel again: 128 to 512 channels on 28 x 28, with a residual, take 68 us at
    batch 128 in rounds of 128 filters and 74 in those of 192 (one H200)."""
    return filter_blocks(problem, stream.filters) * (stream.filters + _READ_AGAIN)


def _blocks(problem: ContractionProblem, stream: Stream, machine: Machine) -> int:
    """How many blocks along M share the pixels."""
    tiles = -(-pixels_of(problem) // stream.pixels)
    return min(tiles, max(1, machine.multiprocessors // filter_blocks(problem, stream.filters)))


def _has_room(problem: ContractionProblem, stream: Stream) -> bool:
    """Whether registers are enough for the sums of an epilogue reduction, and for the warp group
    that computes a producer."""
    if problem.producer is not None and stream.groups > _MOST_BESIDE_MAKERS:
        return False
    return problem.reduction is None or stream.adds(registers_of(problem.reduction))


def _slab_bytes(problem: ContractionProblem, stream: Stream) -> int:
    """Shared memory of a slab, in bytes: 64 channels of its pixels, and of filters that pass."""
    return 128 * (stream.pixels * tensors_of(problem) + (0 if stream.stays else stream.filters))


def _barrier_bytes(problem: ContractionProblem) -> int:
    """Shared memory of a slab's barriers, in bytes: full, ready (with a producer) and empty."""
    return 16 if problem.producer is None else 24


def _fixed(problem: ContractionProblem, stream: Stream) -> int:
    """Shared memory beside the slabs, in bytes: their alignment, filters that stay, results and the
    other tensors, vectors."""
    steps = -(-problem.w.shape[1] // 16)
    results = max(1, len(problem.others)) * stream.groups * 4 * 16 * (stream.columns + 8) * 2
    staying = steps * stream.filters * 32 if stream.stays else 0
    before = steps * 64 if problem.before else 0
    before += stream_producer.shared_bytes(problem, steps)
    after = len(problem.vectors) * stream.filters * 6
    after += epilogue_reduction_text.shared_bytes(problem, stream.filters)
    return 1024 + staying + results + before + after


def _slabs(problem: ContractionProblem, stream: Stream, limit: int) -> int:
    """Stages of the pipeline: slabs of 64 channels, each with its barriers; 0 if too few fit."""
    slab = _slab_bytes(problem, stream)
    count = (limit - _fixed(problem, stream)) // (slab + _barrier_bytes(problem))
    if not stream.stays:
        return count if count >= _LEAST_PASSING else 0
    count = min(count, (_MOST_SLABS if problem.producer is None else _MOST_SLABS_MADE) // slab)
    return count if count * slab >= _LEAST_SLABS else 0


_NAMES = ("filters", "chunks", "slabs", "tiles", "pixels", "x", "y")


def _before_vectors(problem: ContractionProblem) -> str:
    """The copies of scale and shift to shared memory, in the order of a thread's fragments: side by
    side lie channels 2 i, 2 i + 1, 2 i + 8 and 2 i + 9 of sixteen, for lane i of four."""
    if not problem.before:
        return ""
    scale, shift = (argument.index for argument in problem.before[0].arguments[1:])
    code = Code()
    code.line("unsigned int *const scales = (unsigned int *)(md_shared + (vectors - begins));")
    with code.block("for (int i = threadIdx.x; i < steps * 4; i += GROUPS * 128)"):
        code.line("const int q = i / 4 * 16 + i % 4 * 2;")
        code.line("const bool second = i / 4 * 2 + 1 < chunks;")
        for slot, (vector, high) in enumerate(
            ((scale, False), (scale, True), (shift, False), (shift, True))
        ):
            read = f"*(const unsigned int *)(u{vector} + q{' + 8' if high else ''})"
            read = f"second ? {read} : 0u" if high else read
            code.line(f"scales[i * 4 + {slot}] = {read};")
    return str(code).rstrip("\n")


def _scale(problem: ContractionProblem, index: str, step: str) -> str:
    """The prologue on sixteen rows of sixteen channels, which are a warp's fragments."""
    if not problem.before:
        return ""
    code = Code()
    code.line(f"const uint4 s = *(const uint4 *)(scales + (({step}) * 4 + (lane & 3)) * 4);")
    for i, (scale, shift) in enumerate((("x", "z"), ("x", "z"), ("y", "w"), ("y", "w"))):
        code.line(f"a[{index}][{i}] = scaled<T>(a[{index}][{i}], s.{scale}, s.{shift});")
    return str(code).rstrip("\n")


def _behind_vectors(problem: ContractionProblem) -> str:
    """The asynchronous copies of the epilogue's vectors for the block's filters.  They go behind
    the space for the floats that they are converted to."""
    count = len(problem.vectors)
    code = Code()
    if count:
        with code.block("for (int i = threadIdx.x; i < FILTERS / 8; i += GROUPS * 128)"):
            code.line("const bool inside = n0 + i * 8 < filters;")
            for i in range(count):
                to = f"behind + {count} * FILTERS * 4 + ({i} * FILTERS + i * 8) * 2"
                code.line(f"copy({to}, inside ? v{i} + n0 + i * 8 : v{i}, inside);")
    return str(code).rstrip("\n")


def _behind_numbers(problem: ContractionProblem) -> str:
    """The conversion to floats of the vectors that a thread has copied."""
    count = len(problem.vectors)
    code = Code()
    if count:
        code.line("float *const after = (float *)(md_shared + (behind - begins));")
        with code.block("for (int i = threadIdx.x; i < FILTERS / 8; i += GROUPS * 128)"):
            for i in range(count):
                index = f"{i} * FILTERS + i * 8"
                code.line(f"float b{i}[8];")
                code.line(f"md_load<8>(b{i}, (const T *)(after + {count} * FILTERS) + {index});")
                code.unrolled_line(f"for (int j = 0; j < 8; j++) after[{index} + j] = b{i}[j];")
    return str(code).rstrip("\n")


_OTHERS = """\
  auto ask = [&](int tile) {
    const long long m1 = (long long)tile * PIXELS + part_row;
    const int left = (int)min(max(P_pixels - m1, 0ll), 16ll);
    #pragma unroll
    for (int i = 0; i < ACROSS; i++) {
      const int n = n1 + column0 + i * LANES * 8;
      const unsigned int to = joined + ((warp * 16 + row0) * PITCH + column0 + i * LANES * 8) * 2;
$COPIES$
    }
  };
  ask(blockIdx.x);"""
_COPIES = """\
      const T *from$I$ = x$X$ + (m1 + row0) * P_other$I$ + n;
      #pragma unroll
      for (int j = 0; j < DOWN; j++, from$I$ += ROWS * P_other$I$)
        if (n < filters && row0 + j * ROWS < left)
          copy(to + ($I$ * JOINED + j * ROWS * PITCH) * 2, from$I$, true);"""


def _others(problem: ContractionProblem) -> str:
    """The asynchronous copies of the other tensors of a tile, and those of the first tile; beyond
    the last tile are no pixels."""
    count = len(problem.others)
    copies = "\n".join(fill(_COPIES, {"I": i, "X": 1 + i}) for i in range(count))
    return fill(_OTHERS, {"COPIES": copies}) if count else ""


def _read(problem: ContractionProblem) -> str:
    """The loads of the epilogue's tensors and vectors, for the next columns of two rows."""
    code = Code()
    for i in range(len(problem.others)):
        code.line(f"float x{i}s[AT_ONCE / 4][2];")
        with code.unrolled("for (int i = 0; i < AT_ONCE / 4; i++)"):
            address = f"at + {i} * JOINED + (i & 1) * 8 * PITCH + i / 2 * 8"
            code.line(f"md_load<2>(x{i}s[i], {address});")
    for i in range(len(problem.vectors)):
        code.line(f"float2 v{i}s[AT_ONCE / 8];")
        with code.unrolled("for (int i = 0; i < AT_ONCE / 8; i++)"):
            address = f"{i} * FILTERS + n1 - n0 + part + i * 8 + (lane & 3) * 2"
            code.line(f"v{i}s[i] = pair(behind + ({address}) * 4);")
    return str(code).rstrip("\n")


def _epilogue(problem: ContractionProblem) -> str:
    """The epilogue of two neighbours of a row."""
    code = Code()
    for i in range(len(problem.others)):
        code.line(f"const float (&a{1 + i})[2] = x{i}s[i];")
    for i in range(len(problem.vectors)):
        code.line(f"const float b{i}[2] = {{v{i}s[i / 2].x, v{i}s[i / 2].y}};")
    compute_stages(code, problem, "2")
    return str(code).rstrip("\n")
