"""Values that are no floating-point numbers: their types in memory, and expressions of them."""

from __future__ import annotations

from ...graph.types import INTEGERS
from ..codegen.dialect import CUDA
from ..codegen.functions import WHOLE_FUNCTIONS
from .prelude import TYPES

STORED = {**TYPES, "int32": "int", "int64": "long long", "bool": "unsigned char"}
"""The element types of all values; a bool is a byte of 0 or 1."""

HELPERS = "typedef long long int64;\n" + CUDA.fill(WHOLE_FUNCTIONS)
"""What expressions of whole numbers need; ``@`` is the kernel's name."""


def is_whole(dtype: str | None) -> bool:
    """Whether a dtype is one of whole numbers, which are computed as 64 bits."""
    return dtype in INTEGERS


def read(element: str, dtype: str, whole: bool) -> str:
    """An element as a float, or as 64 bits."""
    value = f"md_value({element})" if dtype in TYPES else element
    return f"({'long long' if whole else 'float'})({value})"


def stored(value: str, dtype: str) -> str:
    """A number as an element: fractions of whole numbers are cut off."""
    if dtype in TYPES:
        return f"md_as<{TYPES[dtype]}>((float)({value}))"
    return f"({value}) != 0" if dtype == "bool" else f"({STORED[dtype]})({value})"
