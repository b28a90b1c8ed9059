"""How a value lies in memory, as kernels address it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...graph.layout import Layout
from ...graph.types import TensorType
from .element import ELEMENTS, Element

#: How the lanes of a block of channels are read and written: side by side, one element for all,
#: by transposing rows of pixels, or one by one.
Access = Literal["vector", "one", "planar", "gather"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Strides of a value, in elements.

    Element (n, c, y, x) lies at ``n * image + c // block * plane + (y * columns + x) * block +
    c % block``.  ``block == 1`` is NCHW; otherwise ``block`` channels lie side by side.
    """

    channels: int
    rows: int
    columns: int
    block: int
    #: From one image to the next; more than the value's own size if it is a slice.
    image: int
    dtype: str = "float32"

    @property
    def element(self) -> Element:
        return ELEMENTS[self.dtype]

    @property
    def plane(self) -> int:
        """From one block of channels to the next."""
        return self.rows * self.columns * self.block

    @property
    def blocks(self) -> int:
        return -(-self.channels // self.block)

    def access(self, begin: int, lanes: int, shared: bool) -> Access:
        """How the channels from ``begin`` on are reached; ``shared``: one is for all lanes."""
        if shared:
            return "one"
        if self.block == 1:
            return "planar" if self.rows * self.columns > 1 else "gather"
        return "vector" if self.block == lanes and begin % lanes == 0 else "gather"


def tensor_of(type: TensorType, layout: Layout, buffer: TensorType | None = None) -> Tensor:
    """The strides of a value in a layout; ``buffer`` is the wider value that it is a slice of."""
    _, channels, rows, columns = type.plane
    block = layout.block if type.rank == 4 else 1
    wide = (buffer or type).plane[1]
    image = -(-wide // block) * block * rows * columns
    return Tensor(channels, rows, columns, block, image, type.dtype)
