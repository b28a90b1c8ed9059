"""Whether a network still has the constants that programs of it were made of."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.ir import Graph


def checksums(graph: Graph) -> dict[str, int]:
    """Of the constants: programs of other sizes must have the same."""
    found: dict[str, int] = {}
    for value in graph.constants:
        array = np.ascontiguousarray(value.data)
        found[value.name] = zlib.crc32(array.reshape(-1).view(np.uint8).data)
    return found


def check_same(before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """GraphError if a constant has another checksum than before."""
    changed = [name for name, value in now.items() if before.get(name, value) != value]
    if changed:
        raise GraphError(
            f"parameter {changed[0]!r} of the network has other numbers than when it was compiled, "
            "so a program for another size would not compute the same; valid is to compile again"
        )
