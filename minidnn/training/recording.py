"""Recording what follows a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minidnn.graph.ir import Graph
from minidnn.graph.trace import Trace, tracing


@contextmanager
def behind(graph: Graph, training: bool = True, described: bool = False) -> Iterator[Trace]:
    """Records what follows a graph; ``described`` is what a user writes."""
    with tracing(graph.name, states=True, training=training) as trace:
        trace.adopt(graph)
        trace.describing = described
        yield trace
