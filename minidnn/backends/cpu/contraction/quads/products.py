"""Functions in C that sum up products of four bytes, in int32.

``name(x, offsets, taps, blocks, next, w, sums)`` is as in :mod:`..dots.products`, but that terms
are bytes: inputs unsigned, weights signed.  They come in blocks of 64 input channels, and of
weights there are for each block and tap 16 quads of channels, each of 16 lanes a vector.  No sum of
fewer than 32 bits lies between.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 64
"""Input channels that are multiplied at a time; what fills up a block has no weight."""

_HEAD = """\
#include <immintrin.h>
#include <stdint.h>
"""

_VECTORS = """\
__attribute__((target("avx512f,avx512bw,avx512vnni"), visibility("hidden")))
void <name>(const char *x, const int32_t *offsets, int64_t taps, int64_t blocks, int64_t next,
            const char *w, int32_t *sums) {
  __m512i a[<pixels>][<vectors>];
#pragma GCC unroll 32
  for (int p = 0; p < <pixels>; p++)
#pragma GCC unroll 32
    for (int v = 0; v < <vectors>; v++) a[p][v] = _mm512_setzero_si512();
  for (int64_t block = 0; block < blocks; block++, x += next)
    for (int64_t tap = 0; tap < taps; tap++) {
      const char *from = x + offsets[tap];
      for (int quad = 0; quad < 16; quad++, from += 4, w += 64 * <vectors>) {
        __m512i b[<vectors>];
#pragma GCC unroll 32
        for (int v = 0; v < <vectors>; v++) b[v] = _mm512_loadu_si512(w + 64 * v);
#pragma GCC unroll 32
        for (int p = 0; p < <pixels>; p++) {
          const __m512i each = _mm512_set1_epi32(*(const int32_t *)(from + p * <step>));
#pragma GCC unroll 32
          for (int v = 0; v < <vectors>; v++) a[p][v] = _mm512_dpbusd_epi32(a[p][v], each, b[v]);
        }
      }
    }
#pragma GCC unroll 32
  for (int p = 0; p < <pixels>; p++)
#pragma GCC unroll 32
    for (int v = 0; v < <vectors>; v++)
      _mm512_storeu_si512(sums + 16 * (p * <vectors> + v), a[p][v]);
}
"""

_SHARED_TILES = """\
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-int8")
static const struct {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
} md_byte_tiles __attribute__((used, aligned(64))) = {
  1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
__attribute__((visibility("hidden"))) void md_begin_byte_tiles(void) {
  _tile_loadconfig(&md_byte_tiles);
}
__attribute__((visibility("hidden"))) void md_end_byte_tiles(void) { _tile_release(); }
#pragma GCC pop_options
"""

# Tiles 0 to 3 are sums, 4 and 5 pixels, 6 and 7 weights.
_TILES = """\
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-int8")
__attribute__((visibility("hidden")))
void <name>(const char *x, const int32_t *offsets, int64_t taps, int64_t blocks, int64_t next,
            const char *w, int32_t *sums) {
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
class QuadProducts:
    """One such function.

    Attributes:
        pixels: that it computes, ``step`` bytes apart.
        vectors: of output channels.
        tiles: whether by tiles of 16 pixels, or by vectors.
    """

    pixels: int
    vectors: int
    step: int
    tiles: bool

    @property
    def name(self) -> str:
        kind = "tiles" if self.tiles else "vectors"
        return f"md_byte_{kind}_{self.pixels}x{self.vectors}_{self.step}"

    @property
    def declaration(self) -> str:
        """How ISPC calls it."""
        return (
            f'extern "C" void {self.name}(const uniform int8 * uniform x, '
            "const uniform int32 * uniform offsets, uniform int64 taps, uniform int64 blocks, "
            "uniform int64 next, const uniform int8 * uniform w, uniform int32 * uniform sums);"
        )

    @property
    def pieces(self) -> tuple[str, ...]:
        """Its text in C, in pieces that others share."""
        text = _tiles_text(self) if self.tiles else _VECTORS
        names = {"name": self.name, "pixels": self.pixels, "vectors": self.vectors}
        for name, value in (*names.items(), ("step", self.step)):
            text = text.replace(f"<{name}>", str(value))
        return (_HEAD, *((_SHARED_TILES,) if self.tiles else ()), text)


def _tiles_text(products: QuadProducts) -> str:
    rows, columns = range(products.pixels // 16), range(products.vectors)
    sums = {(r, c): 2 * r + c for r in rows for c in columns}
    zeros = [f"  _tile_zero({number});" for number in sums.values()]
    terms = []
    for c in columns:
        terms.append(f"      _tile_loadd({6 + c}, w + {64 * c}, {64 * len(columns)});")
    for r in rows:
        terms.append(f"      _tile_loadd({4 + r}, from + {16 * r} * <step>, <step>);")
        terms += [f"      _tile_dpbusd({sums[r, c]}, {4 + r}, {6 + c});" for c in columns]
    stores = [
        f"  _tile_stored({number}, sums + {16 * (16 * r * len(columns) + c)}, {64 * len(columns)});"
        for (r, c), number in sums.items()
    ]
    text = _TILES.replace("<zeros>", "\n".join(zeros)).replace("<terms>", "\n".join(terms))
    return text.replace("<stores>", "\n".join(stores))
