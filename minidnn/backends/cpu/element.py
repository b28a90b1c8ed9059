"""How elements lie in memory, as kernels read and write them: all compute in float32.

Bytes are whole numbers, of which floats keep the whole part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ...graph.types import ITEMSIZE

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
