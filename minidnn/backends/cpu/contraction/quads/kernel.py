"""Prints the kernel around products of quads."""

from __future__ import annotations

from .....fusion.contraction import Parts
from ..dots.kernel import print_products
from ..dots.numbers import SchemeNumbers
from ..stage import PrintedContraction
from .numbers import QUAD_NUMBERS
from .pack import QuadPacker
from .scheme import QuadScheme
from .weights import packed_quads, packed_starts, packed_zero


def print_quads(parts: Parts, scheme: QuadScheme, threads: int) -> PrintedContraction:
    """The kernel that follows ``scheme``."""
    given = (packed_quads(parts.node.inputs[1], scheme), packed_starts(parts, scheme))
    numbers = SchemeNumbers(scheme, QUAD_NUMBERS, packed_zero(parts))
    return print_products(parts, scheme, threads, QuadPacker(parts, scheme, numbers), given)
