"""What programs of a network are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
