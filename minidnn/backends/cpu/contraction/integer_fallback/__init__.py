"""Contractions of whole numbers: the sums of products of bytes, to the last bit, in int32.

All values lie as NCHW.  A first kernel packs four channels of each pixel into a word, padded as the
windows want it, so that one instruction of VNNI adds four products to the sum of each lane.  Where
a processor lacks it ISPC puts the same sums together exactly.  What is wider than a byte is
multiplied number by number.

Lanes are pixels of a convolution, whose words lie side by side, and features of a linear layer.
"""

from __future__ import annotations

from .kernel import MOST_EXACT
from .support import (
    multiplies_bytes,
    print_integer,
    why_not_behind,
    why_not_in_blocks,
    why_not_integer,
)

__all__ = [
    "MOST_EXACT",
    "multiplies_bytes",
    "print_integer",
    "why_not_behind",
    "why_not_in_blocks",
    "why_not_integer",
]
