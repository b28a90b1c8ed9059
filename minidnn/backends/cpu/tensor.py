"""Layouts of values in memory, and their elements as kernels load and store them.

Kernels compute in float32.  A float that is stored as int8 or uint8 is clamped and truncated.
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
"""Adding this to a small float rounds it to an integer, which the lowest bits of the sum hold."""


@dataclass(frozen=True)
class Element:
    """How ISPC loads, stores and rounds elements of one dtype.

    Attributes:
        dtype: the dtype's name.
        type: ISPC's type of an element in memory.
        widens: the expression of an element as a float; ``{}`` is the element.
        narrows: the expression of a float as an element; ``{}`` is the float.
        rounds: the expression of a float rounded to the dtype; ``{}`` is the float.
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
        """The expression of the element ``at`` as a float."""
        return self.widens.format(at)

    def store(self, at: str, value: str) -> str:
        """The statement that stores a float to the element ``at``."""
        return f"{at} = {self.narrows.format(value)};"

    def store_nearest(self, at: str, value: str, zero: int) -> str:
        """The statement that stores ``zero`` plus the integer nearest to a float, ties to even, to
        an int8 or uint8 element: what rounding, adding and :meth:`store` write."""
        bounds = np.iinfo(self.dtype)
        within = f"min(max({value}, {bounds.min - zero}.0f), {bounds.max - zero}.0f)"
        # Floats of this size are integers: adding rounds, and leaves the number in the lowest bits.
        bits = f"intbits({within} + {_WHOLE}f)"
        return f"{at} = ({self.type})({bits}{f' + {zero}' if zero else ''});"

    def round(self, value: str) -> str:
        """The expression of a float as it would be loaded again after a store."""
        return self.rounds.format(value)


def _within(dtype: str) -> str:
    """The expression of a float clamped to the range of int8 or uint8."""
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
"""The elements that these kernels compute with, by dtype."""

#: By dtype, ISPC's type of an element in memory; a bool is a byte of 0 or 1.
STORED = {"float32": "float", "int32": "int32", "int64": "int64", "bool": "unsigned int8"}
STORED |= {"uint8": "unsigned int8", "int8": "int8"}
STORED |= {"bfloat16": ELEMENTS["bfloat16"].type}


#: How the lanes of a block of channels are loaded and stored: as a contiguous "vector", as "one"
#: element that is broadcast, by transposing rows of "planar" pixels, or by a "gather" of lanes.
Access = Literal["vector", "one", "planar", "gather"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """The layout and strides of a value, in elements.

    Element (n, c, y, x) is at offset ``n * image + c // block * plane + (y * columns + x) * block +
    c % block``.  ``block == 1`` is NCHW; otherwise ``block`` channels of a pixel are contiguous.
    """

    channels: int
    rows: int
    columns: int
    block: int
    #: The stride from one image to the next; more than the value's own size if it is a slice.
    image: int
    dtype: str = "float32"

    @property
    def element(self) -> Element:
        return ELEMENTS[self.dtype]

    @property
    def plane(self) -> int:
        """The stride from one block of channels to the next."""
        return self.rows * self.columns * self.block

    @property
    def blocks(self) -> int:
        return -(-self.channels // self.block)

    def access(self, begin: int, lanes: int, shared: bool) -> Access:
        """How the channels from ``begin`` on are accessed; ``shared``: one is for all lanes."""
        if shared:
            return "one"
        if self.block == 1:
            return "planar" if self.rows * self.columns > 1 else "gather"
        return "vector" if self.block == lanes and begin % lanes == 0 else "gather"


def tensor_of(type: TensorType, layout: Layout, buffer: TensorType | None = None) -> Tensor:
    """The strides of a value in a layout; ``buffer`` is the wider value that it is a slice of."""
    _, channels, rows, columns = type.plane
    block = layout.block if type.rank == 4 else 1
    buffer_channels = (buffer or type).plane[1]
    image = -(-buffer_channels // block) * block * rows * columns
    return Tensor(channels, rows, columns, block, image, type.dtype)
