"""The C functions that compute dot products of packed elements, and the numbers of their kernels.

A packed element is a word of 32 bits with several terms of a sum: two of bfloat16, four of int8.
A line of 64 bytes has 16 words.  A line of inputs is multiplied with 16 lines of weights, of 16
lanes each.

ISPC has no intrinsics for these instructions, so kernels call functions in C.  ``name(x, offsets,
taps, blocks, next, w, sums)`` multiplies some pixels, the first at ``x``, with one or two vectors
of output channels.  It reads a line of terms, of neighbouring input channels, for each of
``blocks`` with a stride of ``next`` bytes, and for each of ``taps`` with an offset of ``offsets``
bytes.  For each block and tap there are 16 words of weights, with 16 lanes for each vector.  The
layout of ``sums`` is [pixel][vector][lane].

A kernel for any spatial size is printed once.  It reads numbers by their names when it runs: for
another size the same names have other values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..numbers import Number, Numbers
from ..problem import BlockedView

LINE = 64
"""Bytes of a line: of inputs of one tap of a pixel that are multiplied at a time."""


@dataclass(frozen=True)
class PackedElement:
    """A packed element: the terms of a word, and the instructions that add up their products.

    Attributes:
        name: what several of them are called.
        terms: how many terms a word has.
        stored: ISPC's type of a packed input.
        weight: NumPy's dtype of a packed weight.
        sums, c_sums: the type of sums in ISPC and in C.
        prefix: begins the names of functions in C.
        registers: the types of a vector of sums and of a vector of factors in C.
        suffix: ends the names of the intrinsics that clear and store sums.
        multiplies: the intrinsic that adds products to a vector of sums, and the target features
            that it needs.
        multiplies_tiles: the same for AMX tiles.
    """

    name: str
    terms: int
    stored: str
    weight: str
    sums: str
    c_sums: str
    prefix: str
    registers: tuple[str, str]
    suffix: str
    multiplies: tuple[str, str]
    multiplies_tiles: tuple[str, str]

    @property
    def block(self) -> int:
        """Terms of a line: input channels that are multiplied at a time."""
        return 16 * self.terms

    @property
    def item_bytes(self) -> int:
        """Bytes of one term."""
        return 4 // self.terms

    @property
    def tiles(self) -> tuple[str, str]:
        """The functions in C that configure and release AMX tiles, before and after their use."""
        return f"{self.prefix}_begin_tiles", f"{self.prefix}_end_tiles"


BF16_PAIR = PackedElement(
    name="pairs",
    terms=2,
    stored="unsigned int16",
    weight="uint16",
    sums="float",
    c_sums="float",
    prefix="md_pair",
    registers=("__m512", "__m512bh"),
    suffix="ps",
    multiplies=("_mm512_dpbf16_ps", "avx512bf16"),
    multiplies_tiles=("_tile_dpbf16ps", "amx-bf16"),
)
"""Two bfloat16 values, summed in float32.  The instructions treat subnormal numbers as zeros, and
round sums to the nearest."""

INT8_QUAD = PackedElement(
    name="quads",
    terms=4,
    stored="unsigned int8",
    weight="int8",
    sums="int32",
    c_sums="int32_t",
    prefix="md_quad",
    registers=("__m512i", "__m512i"),
    suffix="si512",
    multiplies=("_mm512_dpbusd_epi32", "avx512vnni"),
    multiplies_tiles=("_tile_dpbusd", "amx-int8"),
)
"""Four 8-bit integers, inputs unsigned and weights signed.  Every intermediate sum has 32 bits."""


_HEAD = """\
#include <immintrin.h>
#include <stdint.h>
"""

_VECTORS = """\
__attribute__((target("avx512f,avx512bw,<needs>"), visibility("hidden")))
void <name>(const char *x, const int32_t *offsets, int64_t taps, int64_t blocks, int64_t next,
            const char *w, <c_sums> *sums) {
  <sum> a[<pixels>][<vectors>];
#pragma GCC unroll 32
  for (int p = 0; p < <pixels>; p++)
#pragma GCC unroll 32
    for (int v = 0; v < <vectors>; v++) a[p][v] = _mm512_setzero_<suffix>();
  for (int64_t block = 0; block < blocks; block++, x += next)
    for (int64_t tap = 0; tap < taps; tap++) {
      const char *from = x + offsets[tap];
      for (int word = 0; word < 16; word++, from += 4, w += 64 * <vectors>) {
        <factor> b[<vectors>];
#pragma GCC unroll 32
        for (int v = 0; v < <vectors>; v++) b[v] = (<factor>)_mm512_loadu_si512(w + 64 * v);
#pragma GCC unroll 32
        for (int p = 0; p < <pixels>; p++) {
          const <factor> each = (<factor>)_mm512_set1_epi32(*(const int32_t *)(from + p * <step>));
#pragma GCC unroll 32
          for (int v = 0; v < <vectors>; v++) a[p][v] = <multiply>(a[p][v], each, b[v]);
        }
      }
    }
#pragma GCC unroll 32
  for (int p = 0; p < <pixels>; p++)
#pragma GCC unroll 32
    for (int v = 0; v < <vectors>; v++)
      _mm512_storeu_<suffix>(sums + 16 * (p * <vectors> + v), a[p][v]);
}
"""

_SHARED_TILES = """\
#pragma GCC push_options
#pragma GCC target("amx-tile,<tiles_need>")
static const struct {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
} <prefix>_shape __attribute__((used, aligned(64))) = {
  1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
__attribute__((visibility("hidden"))) void <prefix>_begin_tiles(void) {
  _tile_loadconfig(&<prefix>_shape);
}
__attribute__((visibility("hidden"))) void <prefix>_end_tiles(void) { _tile_release(); }
#pragma GCC pop_options
"""

# Tiles 0 to 3 are sums, 4 and 5 pixels, 6 and 7 weights.
_TILES = """\
#pragma GCC push_options
#pragma GCC target("amx-tile,<tiles_need>")
__attribute__((visibility("hidden")))
void <name>(const char *x, const int32_t *offsets, int64_t taps, int64_t blocks, int64_t next,
            const char *w, <c_sums> *sums) {
<zeros>
  for (int64_t block = 0; block < blocks; block++, x += next)
    for (int64_t tap = 0; tap < taps; tap++, w += 1024 * <vectors>) {
      const char *from = x + offsets[tap];
<terms>
    }
<stores>
  __asm__ volatile("" ::: "memory");
}
#pragma GCC pop_options
"""


@dataclass(frozen=True)
class Products:
    """One function in C that computes dot products; see the module.

    Attributes:
        word: the packed element that is multiplied.
        pixels: how many pixels it computes, with a stride of ``step`` bytes.
        vectors: how many vectors of output channels it computes.
        tiles: whether it uses AMX tiles of 16 pixels, or vectors.
    """

    word: PackedElement
    pixels: int
    vectors: int
    step: int
    tiles: bool

    @property
    def name(self) -> str:
        kind = "tiles" if self.tiles else "vectors"
        return f"{self.word.prefix}_{kind}_{self.pixels}x{self.vectors}_{self.step}"

    @property
    def declaration(self) -> str:
        """Its declaration in ISPC."""
        return (
            f'extern "C" void {self.name}(const uniform int8 * uniform x, '
            "const uniform int32 * uniform offsets, uniform int64 taps, uniform int64 blocks, "
            "uniform int64 next, const uniform int8 * uniform w, "
            f"uniform {self.word.sums} * uniform sums);"
        )

    @property
    def pieces(self) -> tuple[str, ...]:
        """Its text in C, in pieces that functions share."""
        return _pieces(self)


@lru_cache(1024)
def _pieces(products: Products) -> tuple[str, ...]:
    word = products.word
    names = {
        **{"name": products.name, "pixels": products.pixels, "vectors": products.vectors},
        **{"step": products.step, "prefix": word.prefix, "c_sums": word.c_sums},
        **{"sum": word.registers[0], "factor": word.registers[1], "suffix": word.suffix},
        **{"multiply": word.multiplies[0], "needs": word.multiplies[1]},
        "multiply_tiles": word.multiplies_tiles[0],
        "tiles_need": word.multiplies_tiles[1],
    }
    pieces = (_SHARED_TILES, _tiles_text(products)) if products.tiles else (_VECTORS,)
    return (_HEAD, *(_filled(piece, names) for piece in pieces))


def _filled(text: str, names: Mapping[str, object]) -> str:
    for name, value in names.items():
        text = text.replace(f"<{name}>", str(value))
    return text


def _tiles_text(products: Products) -> str:
    rows, columns = range(products.pixels // 16), range(products.vectors)
    sums = {(r, c): 2 * r + c for r in rows for c in columns}
    zeros = [f"  _tile_zero({number});" for number in sums.values()]
    terms = []
    for c in columns:
        terms.append(f"      _tile_loadd({6 + c}, w + {64 * c}, {64 * len(columns)});")
    for r in rows:
        terms.append(f"      _tile_loadd({4 + r}, from + {16 * r} * <step>, <step>);")
        terms += [f"      <multiply_tiles>({sums[r, c]}, {4 + r}, {6 + c});" for c in columns]
    stores = [
        f"  _tile_stored({number}, sums + {16 * (16 * r * len(columns) + c)}, {64 * len(columns)});"
        for (r, c), number in sums.items()
    ]
    text = _TILES.replace("<zeros>", "\n".join(zeros)).replace("<terms>", "\n".join(terms))
    return text.replace("<stores>", "\n".join(stores))


#: Functions by the name of a number, which compute it from a scheme.
Table = Mapping[str, Callable[[Any], int]]

DOT_NUMBERS: Table = {
    # Tasks.
    "blocks": lambda s: s.blocks,
    "block_size": lambda s: s.block,
    "end_of_out": lambda s: s.problem.out_size[1 if s.by_columns else 0],
    "groups": lambda s: s.groups,
    "images": lambda s: s.images,
    "out_columns": lambda s: s.problem.out_size[1],
    "parts": lambda s: s.tile.groups,
    "wide": lambda s: s.tile.wide,
    # Inputs.
    "before_x": lambda s: s.problem.padding[1][0],
    "before_y": lambda s: s.problem.padding[0][0],
    "input_blocks": lambda s: -(-s.problem.in_channels // s.lanes),
    "inputs": lambda s: s.problem.in_channels,
    "size_x": lambda s: s.problem.in_size[1],
    "size_y": lambda s: s.problem.in_size[0],
    "stride_x": lambda s: s.problem.stride[1],
    "x_column": lambda s: s.problem.source.column,
    "x_image": lambda s: s.problem.source.image,
    "x_plane": lambda s: s.problem.source.plane,
    "x_row": lambda s: s.problem.source.row,
    # Packed inputs: strides in terms, or in bytes where the name says so.
    "again_bytes": lambda s: s.line_bytes + s.fallback_bytes,
    "image_bytes": lambda s: s.image_bytes,
    "packed_bytes": lambda s: s.packed_bytes,
    "packed_column": lambda s: s.pixel_bytes // s.word.item_bytes,
    "packed_plane": lambda s: s.plane_bytes // s.word.item_bytes,
    "packed_rows": lambda s: s.packed_rows,
    "packed_width": lambda s: s.packed_width,
    "phase": lambda s: s.phase,
    "row_stride": lambda s: s.row_stride,
    "rows_apart": lambda s: s.problem.stride[0] if s.reads_all else 1,
    "run": lambda s: s.run_bytes // s.word.item_bytes,
    # Products.
    "blocks_of_terms": lambda s: s.blocks_of_terms,
    "flat_width": lambda s: s.flat_width,
    "group_outputs": lambda s: s.outputs,
    "next": lambda s: s.next,
    "outputs": lambda s: s.outputs,
    "slots": lambda s: s.slots,
    "taps": lambda s: s.taps,
    "weight_bytes": lambda s: LINE * s.taps * s.blocks_of_terms,
    # The fallback, which computes merged groups one by one.
    "exact_outputs": lambda s: s.outputs // s.merged,
    "exact_terms": lambda s: s.fallback_terms,
    "merged": lambda s: s.merged,
    "pixel_step": lambda s: s.step // s.word.item_bytes,
}


class SchemeNumbers(Numbers):
    """Numbers that are computed from a scheme by a table, unless their value is passed.

    Those of the result ``y`` and of further tensors ``z0``, ``z1`` are fields of their views, such
    as ``y_plane``; ``zero`` is the zero point.
    """

    def __init__(self, scheme: Any, table: Table, zero: int = 0) -> None:
        super().__init__()
        self._scheme, self._table, self._zero = scheme, table, zero

    def __call__(self, name: str, value: Number | None = None) -> str:
        return super().__call__(name, self.of(name) if value is None else value)

    def of(self, name: str) -> int:
        """The value of the number of that name."""
        if (compute := self._table.get(name)) is not None:
            return compute(self._scheme)
        if name == "zero":
            return self._zero
        tensor, _, field = name.partition("_")
        view: BlockedView = self._scheme.problem.result_views[tensor]
        value: int = getattr(view, field)
        return value
