"""How values and their elements lie in memory, as kernels address, read and write them.

All compute in float32.  Bytes are whole numbers, of which floats keep the whole part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from ...graph.layout import Layout
from ...graph.types import ITEMSIZE, TensorType

_WHOLE = 1.5 * 2**23


@dataclass(frozen=True)
class Element:
    """One dtype of elements.

    Attributes:
        dtype: its name.
        type: ISPC's name of what lies in memory.
        widens: a float of an element; ``{}`` is the element.
        narrows: an element of a float; ``{}`` is the float.
        rounds: a float that the dtype has, of any; ``{}`` is that.
    """

    dtype: str
    type: str
    widens: str
    narrows: str
    rounds: str

    @property
    def bytes(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def constant_pointer(self) -> str:
        """The type of a pointer through which elements are read."""
        return f"const uniform {self.type} * uniform"

    @property
    def pointer(self) -> str:
        """The type of a pointer through which elements are written."""
        return f"uniform {self.type} * uniform"

    def pointer_type(self, reads: bool) -> str:
        """The type of a pointer to elements that are read, or written."""
        return self.constant_pointer if reads else self.pointer

    def load(self, at: str) -> str:
        """The float of the element at a place."""
        return self.widens.format(at)

    def store(self, at: str, value: str) -> str:
        """Writes a float to a place."""
        return f"{at} = {self.narrows.format(value)};"

    def store_nearest(self, at: str, value: str, zero: int) -> str:
        """Writes ``zero`` and the whole number that is nearest to a float, ties to even, to a place
        of a byte: what rounding, adding and :meth:`store` write."""
        bounds = np.iinfo(self.dtype)
        within = f"min(max({value}, {bounds.min - zero}.0f), {bounds.max - zero}.0f)"
        # Floats of this size are whole: adding rounds, and leaves the number in the lowest bits.
        bits = f"intbits({within} + {_WHOLE}f)"
        return f"{at} = ({self.type})({bits}{f' + {zero}' if zero else ''});"

    def round(self, value: str) -> str:
        """A float as it would be read again."""
        return self.rounds.format(value)


def _within(dtype: str) -> str:
    """A float as the nearest to it of those that a byte's whole numbers lie between."""
    bounds = np.iinfo(dtype)
    # ISPC's functions give the second of two numbers if the first is NaN, which becomes the least.
    return f"min(max({{0}}, {bounds.min}.0f), {bounds.max}.0f)"


ELEMENTS: Mapping[str, Element] = MappingProxyType(
    {
        "float32": Element("float32", "float", "{}", "{}", "{}"),
        "bfloat16": Element(
            "bfloat16", "unsigned int16", "md_wide({})", "md_narrow({})", "md_round({})"
        ),
        **{
            dtype: Element(
                dtype,
                type,
                "(float)(int){0}",
                f"({type})(int){_within(dtype)}",
                f"(float)(int){_within(dtype)}",
            )
            for dtype, type in (("uint8", "unsigned int8"), ("int8", "int8"))
        },
    }
)
"""All of them, by their dtypes."""

#: ISPC's names of how elements lie in memory; a bool is a byte of 0 or 1.
STORED = {"float32": "float", "int32": "int32", "int64": "int64", "bool": "unsigned int8"}
STORED |= {"uint8": "unsigned int8", "int8": "int8"}
STORED |= {"bfloat16": ELEMENTS["bfloat16"].type}


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
