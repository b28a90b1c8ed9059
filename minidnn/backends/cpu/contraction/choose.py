"""Choosing the scheme of a contraction, from shapes alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..isa import Isa
from .blocking import block_cycles
from .problem import Problem, gathered
from .scheme import Packing, Scheme
from .tiling import Tile, choose_tile, cycles_of, tiles_for

CHUNK_TERMS = {8: 256, 16: 768}
"""By lanes: of a longer sum all pixels of a block take about so many terms in turn, whose weights
stay near meanwhile.  With AVX-512 the second-level cache is near enough; AVX2's tiles are smaller
and read weights twice as often for the same arithmetic, so there they should fit the first level.
"""

PART_TERMS = 128
"""About so many terms of a sum are added up by themselves (at least those of one step).  Rounding
errors grow with the square root of a part's length and of the number of parts, and adding a part
to those before takes a tile about as long as one term."""

SHORT_TERMS = 32
"""So many are a short part.  What adding up parts rounds off is added at the end, so that the error
is that of a part, however long the sum is (0.8e-7 of the root of the mean square of sums of 4096
and 9216 products; 1.8 and 2.1 where as many parts as they have terms are just added up).  Adding a
part takes a tile about as long as seven terms."""

MOST_UNROLLED_PLANES = 8

_ENDLESS = 1 << 20
"""Pixels of a row of which tiles leave nothing that counts."""

TILE_MARGIN = 1.4
"""Register tiles whose sums take that many times as long as the best one's are not considered."""


@lru_cache(4096)
def choose_scheme(
    problem: Problem, has_prologue: bool, isa: Isa, threads: int, compensated: bool = False
) -> Scheme:
    """The scheme for a problem; only the size of its blocks depends on ``threads``.

    ``compensated``: sums in short parts whose rounding errors are added at the end.
    """
    found: list[Scheme] = []
    for seen in _seen(problem, isa.lanes):
        shape = _shape(seen, has_prologue, isa, compensated)
        tile = choose_tile(seen.out, shape.vectors, seen.depth, isa, shape.most_vectors)
        found += _blocked(seen, shape, tile)
    return min(found, key=lambda scheme: block_cycles(scheme, threads))


@lru_cache(4096)
def scheme_for_any_size(
    problem: Problem, has_prologue: bool, isa: Isa, threads: int, compensated: bool = False
) -> Scheme:
    """The scheme whose kernel is that of problems that differ from this one in their numbers of
    pixels alone."""
    seen = _seen(problem, isa.lanes)[-1]
    shape = _shape(seen, has_prologue, isa, compensated)
    tile = choose_tile((1, _ENDLESS), shape.vectors, seen.depth, isa, shape.most_vectors)
    found = _blocked(seen, shape, tile, any_size=True)
    return min(found, key=lambda scheme: block_cycles(scheme, threads, scheme.tile.groups))


def schemes_for(
    problem: Problem, has_prologue: bool, isa: Isa, compensated: bool = False
) -> Iterator[Scheme]:
    """The schemes with all sizes of blocks and register tiles, but for tiles that are far worse
    than others.  Equal bits come from all."""
    for seen in _seen(problem, isa.lanes):
        shape = _shape(seen, has_prologue, isa, compensated)
        tiles = {
            tile: cycles_of(tile, seen.out, seen.depth)
            for tile in tiles_for(seen.out, shape.vectors, isa, shape.most_vectors)
        }
        most = TILE_MARGIN * min(tiles.values())
        for tile, cycles in tiles.items():
            if cycles <= most:
                yield from _blocked(seen, shape, tile)


def _seen(problem: Problem, lanes: int) -> list[Problem]:
    """The problem as it is, and if it is 1x1 with a stride also with its pixels gathered."""
    row = gathered(problem) if _is_blocked(problem, lanes) else None
    return [problem] if row is None else [problem, row]


@dataclass(frozen=True)
class _Shape:
    """What follows from the problem, whatever tile is chosen; see :class:`.scheme.Scheme`."""

    lanes: int
    packing: Packing
    unit: int
    chunk: int
    part: int
    compensated: bool
    vectors: int

    @property
    def most_vectors(self) -> int:
        return 1 if self.packing in ("own", "lanes") else 4


def _shape(problem: Problem, has_prologue: bool, isa: Isa, compensated: bool) -> _Shape:
    lanes = isa.lanes
    spread = problem.groups > 1 and problem.outputs < lanes
    packing = _spread(problem, lanes) if spread else _packing(problem, has_prologue, lanes)
    terms, planes = PART_TERMS, MOST_UNROLLED_PLANES
    if compensated:
        terms = SHORT_TERMS
        planes = max(1, min(planes, terms // (problem.kernel[0] * problem.kernel[1])))
    unit = _unit(problem, packing, lanes, planes)
    outputs = problem.outputs * (problem.groups if spread else 1)
    chunk = _chunk(problem, unit, CHUNK_TERMS[lanes])
    part = _part(problem, unit, chunk, terms)
    return _Shape(lanes, packing, unit, chunk, part, compensated and part > 0, -(-outputs // lanes))


def _blocked(problem: Problem, shape: _Shape, tile: Tile, any_size: bool = False) -> list[Scheme]:
    """Schemes with blocks of all sizes that differ, or with ``any_size`` of a few."""
    given = (shape.packing, shape.unit, 1, shape.chunk, shape.part, shape.compensated)
    least = Scheme(problem, shape.lanes, tile, *given, any_size=any_size)
    step = tile.columns if least.by_columns else tile.rows
    steps = -(-problem.out[1 if least.by_columns else 0] // step)
    counts: Sequence[int] = range(1, steps + 1)
    if any_size:  # chosen in a call that waits for it
        counts = [1 << i for i in range(steps.bit_length())]
    sizes = dict.fromkeys(-(-steps // count) * step for count in counts)
    return [replace(least, block=size) for size in sizes]


def _chunk(problem: Problem, unit: int, terms: int) -> int:
    """Steps of a chunk; 0 for sums in one chunk, but for 1x1, where all steps are one chunk:
    networks have short and long sums of 1x1, which then share a text."""
    chunks = max(1, round(problem.depth / terms))
    steps = -(-problem.inputs // unit)
    return 0 if chunks == 1 and problem.kernel != (1, 1) else -(-steps // chunks)


def _part(problem: Problem, unit: int, chunk: int, terms: int) -> int:
    """Steps of a part; 0 for sums in one part that have no chunks."""
    steps = -(-problem.inputs // unit)
    part = max(1, round(terms / (unit * problem.kernel[0] * problem.kernel[1])))
    return 0 if part >= steps and not chunk else part


def _packing(problem: Problem, has_prologue: bool, lanes: int) -> Packing:
    source = problem.source
    blocked = _is_blocked(problem, lanes)
    pointwise = problem.kernel == (1, 1)
    if problem.width:
        return "gathered"
    if not problem.pads and not has_prologue and source.dtype == "float32":
        if blocked:
            return "none"
        if source.contiguous and pointwise:
            return "none"
        if source.block == 1:
            return "none"
    if problem.is_linear:
        return "features"
    return "blocks" if blocked else "pixels"


def _spread(problem: Problem, lanes: int) -> Packing:
    """How inputs are packed of which each lane reads others: as they lie, where a vector of them
    has all that a vector of outputs reads."""
    own = problem.inputs == problem.outputs and lanes % problem.outputs == 0
    return "own" if own and problem.source.block == lanes else "lanes"


def _is_blocked(problem: Problem, lanes: int) -> bool:
    """Whether inputs lie in blocks of lanes, of one group each."""
    source = problem.source
    aligned = problem.groups == 1 or problem.inputs % lanes == 0
    return source.block == lanes and not source.contiguous and aligned


def _unit(problem: Problem, packing: Packing, lanes: int, planes: int) -> int:
    """Channels unrolled in one step, at most ``planes`` where they lie in planes.

    Taps are not: neighbouring pixels share inputs from tap to tap, which compilers then keep,
    and for that spill sums.
    """
    source = problem.source
    if packing == "lanes":
        return 1
    if packing == "own":
        return problem.inputs
    in_planes = packing == "none" and source.block == 1 < problem.inputs
    if packing == "pixels" or in_planes:
        return min(planes, problem.inputs)
    return min(lanes, problem.inputs)
