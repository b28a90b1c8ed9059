"""How a value lies in memory, as kernels address it."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.layout import Layout
from ...graph.types import TensorType


@dataclass(frozen=True, slots=True)
class Tensor:
    """Strides of a float32 value, in elements.

    Element (n, c, y, x) lies at ``n * image + c // block * plane + (y * columns + x) * block +
    c % block``.  ``block == 1`` is NCHW; otherwise ``block`` channels lie side by side.
    """

    channels: int
    rows: int
    columns: int
    block: int
    #: From one image to the next; more than the value's own size if it is a slice.
    image: int

    @property
    def plane(self) -> int:
        """From one block of channels to the next."""
        return self.rows * self.columns * self.block

    @property
    def blocks(self) -> int:
        return -(-self.channels // self.block)

    @property
    def lanes_contiguous(self) -> bool:
        """Whether channels lie side by side in an unblocked value: it has one pixel."""
        return self.block == 1 and self.rows * self.columns == 1


def tensor_of(type: TensorType, layout: Layout, buffer: TensorType | None = None) -> Tensor:
    """The strides of a value in a layout; ``buffer`` is the wider value that it is a slice of."""
    _, channels, rows, columns = type.plane
    block = layout.block if type.rank == 4 else 1
    wide = (buffer or type).plane[1]
    return Tensor(channels, rows, columns, block, -(-wide // block) * block * rows * columns)
