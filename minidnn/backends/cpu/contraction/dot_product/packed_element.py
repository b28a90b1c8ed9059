"""What instructions multiply: words of 32 bits that hold several terms of a sum each.

Lines of 64 bytes hold 16 words.  A line of inputs is multiplied with 16 lines of weights, of 16
lanes each.
"""

from __future__ import annotations

from dataclasses import dataclass

LINE = 64
"""Bytes of inputs that are multiplied at a time, for a tap of a pixel."""


@dataclass(frozen=True)
class PackedElement:
    """The terms of a word, and what adds up their products.

    Attributes:
        name: of several of them.
        terms: of one word.
        stored: ISPC's name of an input as it is packed.
        weight: NumPy's name of a weight as it is packed.
        sums, c_sums: the type of sums in ISPC and in C.
        prefix: begins the names of functions in C.
        registers: the types of a vector of sums and of a vector of factors in C.
        suffix: of C's functions that load and store sums.
        multiplies: the function that adds products to a vector of sums, and what it needs.
        multiplies_tiles: the same for tiles.
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
        """Of a term."""
        return 4 // self.terms

    @property
    def tiles(self) -> tuple[str, str]:
        """The functions in C between which tiles are used."""
        return f"{self.prefix}_begin_tiles", f"{self.prefix}_end_tiles"


PAIRS = PackedElement(
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
"""Two values in bfloat16, summed in float32.  The instructions take numbers below the normal ones
for zeros, and round sums to the nearest."""

QUADS = PackedElement(
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
"""Four bytes, inputs unsigned and weights signed.  No sum of fewer than 32 bits lies between."""
