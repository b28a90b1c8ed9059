"""What programs of a network are made from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph


@dataclass(frozen=True)
class NetworkSource:
    """What programs of a network are made from.

    Attributes:
        shapes: with the named sizes, as they were given.
        trace: the graph for shapes without any.
        compile: the executable of such a graph; with False nothing is tuned.
        tunes: whether tuning was asked for.
        is_code: whether graphs come from others' code, which may look at a size.
        compile_any_size: the same by kernels of any size; None if there are none for a graph.
        asks_each: whether what a graph does may depend on its sizes in ways that two of them do not
            show.
    """

    shapes: Any
    trace: Callable[[Any], Graph]
    compile: Callable[[Graph, bool], Executable]
    tunes: bool
    is_code: bool
    compile_any_size: Callable[[Graph], Callable[[], Executable] | None] = field(
        default=lambda graph: None
    )
    asks_each: bool = True


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
