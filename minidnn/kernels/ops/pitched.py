"""What lowerings know of an operand: its type, and the layout of its elements."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from ...graph.types import ITEMSIZE, TensorType
from ..ir import Expr


@dataclass(frozen=True)
class Pitched:
    """A value in NCHW order, whose samples may be apart in memory.

    Attributes:
        pitch: elements from one sample to the next.
        offset: of the first sample.
    """

    type: TensorType
    pitch: int
    offset: int = 0

    @classmethod
    def dense(cls, type: TensorType) -> Pitched:
        """The layout of a value that is contiguous."""
        return cls(type, prod(type.shape[1:]))

    def bits(self, pack: int = 1) -> str:
        """The dtype of ``pack`` elements that are moved together as they are."""
        return f"bits{8 * ITEMSIZE[self.type.dtype] * pack}"

    def pack(self, bytes: int) -> int:
        """The most elements of at most ``bytes`` bytes that one access moves: samples begin at
        multiples of it."""
        widest = max(1, bytes // ITEMSIZE[self.type.dtype])
        return gcd(widest, prod(self.type.shape[1:]), self.pitch, self.offset)

    def place(self, element: Expr, pack: int = 1) -> Expr:
        """The offset of an element of the dense value, both counted in packs."""
        sample, offset = prod(self.type.shape[1:]) // pack, self.offset // pack
        if self.pitch == sample * pack or self.type.shape[0] == 1:
            return element + offset
        return element // sample * (self.pitch // pack) + element % sample + offset
