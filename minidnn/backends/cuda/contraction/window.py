"""Convolutions of stride 1 by ``wgmma`` whose filters are too many for :mod:`halo`.

Each pixel is read once for all taps here too, but a block takes a few channels of its pixels and of
its filters at a time, so nothing must fit shared memory whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..kernels import Launch
from ..machine import Machine
from ..prelude import TYPES
from .chunks import LANES, step_of
from .halo import pitches, why_not_line
from .hopper import hopper_text
from .kernel import ContractionKernel
from .problem import ContractionProblem
from .text import epilogue_of, join_of, parameters_of, source_of, template, vectors_of

TILES = (4, 2, 1)
"""Times 64 pixels that each of a block's two warp groups makes."""

_THREADS = 384
_WIDEST = 128
"""Filters that a block makes at most."""
_MOST_FILTERS = 64
"""Of more cuDNN's kernels leave no tensor core empty."""
_MOST_PRODUCTS = 144
"""In the text of a slab: more would not stay in the cache of instructions."""
_MOST_SUMS = 128
"""Results in a thread's registers."""
_MOST_SLABS = 8
_MANY_TILES = 128
_NAMES = (
    *("filters", "line", "plane", "tiles", "region", "slabs", "parts", "PY", "PX"),
    *("batch", "H", "W", "image", "row", "pixel", "rows", "columns", "y"),
)


@dataclass(frozen=True)
class Slabs:
    """So many slabs of so many channels by 8."""

    chunks: int
    count: int


class WindowKernel(ContractionKernel):
    """A ring of slabs of pixels and filters; a choice is one of :data:`TILES`."""

    name = "window"

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        reason = why_not_line(problem, machine)
        if reason is not None:
            return reason
        if problem.w.shape[1] % 16:
            return "its channels are no multiple of 16"
        if not fitting(problem, machine):
            return (
                f"pixels and filters of 16 channels do not fit the shared memory of {machine.arch}"
            )
        return None

    def why_slow(self, problem: ContractionProblem) -> str | None:
        if problem.w.shape[0] > _MOST_FILTERS:
            return f"it has more than {_MOST_FILTERS} filters"
        return None

    def price(self, problem: ContractionProblem) -> float:
        return 1.2

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        """The largest two, of those with tiles enough for many blocks if there are."""
        found = fitting(problem, machine)
        many = [n for n in found if n < TILES[0] or _split(problem, n) >= _MANY_TILES]
        return (many or found)[:2]

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """A block for each multiprocessor.

        Arguments: image, filter, the others, the vectors of what comes after, the result; then the
        numbers of :meth:`numbers`.
        """
        filters, _, rows, columns = problem.w.shape
        width, slabs = _width(problem), _slabs_of(problem, choice, machine)
        parts = {
            "T": TYPES[problem.x.dtype],
            "N": width,
            "TAPS": rows * columns,
            "KW": columns,
            "DY": problem.dilation[0],
            "DX": problem.dilation[1],
            "TILES": choice,
            "CHUNKS": slabs.chunks,
            "PARAMETERS": parameters_of(problem, _NAMES),
            "HOPPER": hopper_text(problem.x.dtype, width),
            "TURN": template("turn.cu"),
            "VECTORS": vectors_of(problem),
            "EPILOGUE": epilogue_of(problem),
            "JOIN": join_of(problem),
        }
        source = source_of("window.cu", parts, specific=True)
        groups = -(-filters // width)
        blocks = min(_split(problem, choice), max(1, machine.multiprocessors // groups))
        shared = _fixed(problem, choice) + slabs.count * (_slab(problem, choice, slabs.chunks) + 16)
        return [Launch(source, (blocks, groups, 1), (_THREADS, 1, 1), shared)]

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        x, y = problem.gathered, problem.y
        line, lines = pitches(problem)
        slabs = _slabs_of(problem, choice, machine)
        return [
            problem.w.shape[0],
            line,
            line * lines,
            _split(problem, choice),
            _region(problem, choice),
            slabs.count,
            problem.w.shape[1] // LANES // slabs.chunks,
            problem.padding[0][0],
            problem.padding[1][0],
            problem.batch,
            *(x.rows, x.columns, x.image, x.row, x.pixel),
            *(y.rows, y.columns, step_of(y)),
            *map(step_of, problem.others),
        ]

    def shape(self, choice: int) -> str:
        return f"of {2 * choice * 64} pixels"


def fitting(problem: ContractionProblem, machine: Machine) -> list[int]:
    """Those of :data:`TILES` that there are registers and shared memory for."""
    width, limit = _width(problem), machine.shared_bytes
    return [n for n in TILES if n * width <= 2 * _MOST_SUMS and _slabs(problem, n, limit)]


def _width(problem: ContractionProblem) -> int:
    """Filters of a block: a multiple of 8, about as many in each block."""
    filters = problem.w.shape[0]
    each = -(-filters // -(-filters // _WIDEST))
    return -(-each // LANES) * LANES


def _region(problem: ContractionProblem, tiles: int) -> int:
    """Pixels that a block reads for its tile, in whole patterns of a swizzle."""
    _, _, rows, columns = problem.w.shape
    reach = (rows - 1) * problem.dilation[0] * pitches(problem)[0]
    reach += (columns - 1) * problem.dilation[1]
    return -(-(2 * tiles * 64 + reach) // 8) * 8


def _slab(problem: ContractionProblem, tiles: int, chunks: int) -> int:
    """Bytes of a slab."""
    _, _, rows, columns = problem.w.shape
    return (_region(problem, tiles) + rows * columns * _width(problem)) * 16 * chunks


def _fixed(problem: ContractionProblem, tiles: int) -> int:
    """Bytes of shared memory beside the slabs: what aligns them, results being turned, where
    pixels lie."""
    return 1024 + 8 * 16 * (_width(problem) + 8) * 4 + _region(problem, tiles) * 4


def _slabs(problem: ContractionProblem, tiles: int, limit: int) -> Slabs | None:
    """As many channels as leave room for three slabs, or for two; None if there is not."""
    _, channels, rows, columns = problem.w.shape
    room = limit - _fixed(problem, tiles)
    found = [
        Slabs(chunks, min(room // (_slab(problem, tiles, chunks) + 16), _MOST_SLABS))
        for chunks in (8, 4, 2)
        if channels // LANES % chunks == 0
        and rows * columns * chunks // 2 * tiles <= _MOST_PRODUCTS
    ]
    return next((s for least in (3, 2) for s in found if s.count >= least), None)


def _split(problem: ContractionProblem, tiles: int) -> int:
    """Tiles of the line."""
    line, lines = pitches(problem)
    return -(-problem.batch * line * lines // (2 * tiles * 64))


def _slabs_of(problem: ContractionProblem, tiles: int, machine: Machine) -> Slabs:
    slabs = _slabs(problem, tiles, machine.shared_bytes)
    assert slabs is not None, "why_not refuses it"
    return slabs
