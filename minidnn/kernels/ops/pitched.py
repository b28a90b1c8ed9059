"""What lowerings know of an operand: its type, and where its elements lie."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...graph.types import ITEMSIZE, TensorType
from ..ir import Expr


@dataclass(frozen=True)
class Pitched:
    """A value in NCHW order, whose samples may lie apart.

    Attributes:
        pitch: elements from one sample to the next.
        offset: where the first begins.
    """

    type: TensorType
    pitch: int
    offset: int = 0

    @classmethod
    def dense(cls, type: TensorType) -> Pitched:
        return cls(type, prod(type.shape[1:]))

    @property
    def bits(self) -> str:
        """The dtype of elements that are moved as they are."""
        return f"bits{8 * ITEMSIZE[self.type.dtype]}"

    def place(self, element: Expr) -> Expr:
        """Where an element of the dense value lies."""
        sample = prod(self.type.shape[1:])
        if self.pitch == sample or self.type.shape[0] == 1:
            return element + self.offset
        return element // sample * self.pitch + element % sample + self.offset
