"""Prints the kernel around products of quads."""

from __future__ import annotations

from .....fusion.contraction import Parts
from ..dots.kernel import print_products
from ..numbers import Numbers
from ..stage import PrintedContraction
from .pack import QuadPacker
from .scheme import QuadScheme
from .weights import packed_quads, packed_starts


def print_quads(parts: Parts, scheme: QuadScheme, threads: int) -> PrintedContraction:
    """The kernel that follows ``scheme``."""
    given = (packed_quads(parts.node.inputs[1], scheme), packed_starts(parts, scheme))
    return print_products(parts, scheme, threads, QuadPacker(parts, scheme, Numbers()), given)
