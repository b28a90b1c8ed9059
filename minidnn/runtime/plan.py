"""The plan: an optimized graph with a place in memory for every value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minidnn._cached_property import cached_property
from minidnn.errors import OutOfMemoryError
from minidnn.fusion.target import Target
from minidnn.graph.ir import Graph, Value
from minidnn.graph.layout import PLANAR, Layout
from minidnn.graph.liveness import storage_roots
from minidnn.passes.infrastructure import Context, Rewrite
from minidnn.runtime.memory import Arena, plan_groups, plan_memory


@dataclass(frozen=True)
class Plan:
    """What a backend compiles: ordered regions, layouts, and an arena with offsets."""

    graph: Graph
    arena: Arena
    target: Target
    #: What each thread needs for the groups of nodes that are computed image after image.
    group_arena: Arena
    #: How the graph came about, for explain().
    rewrites: Sequence[Rewrite] = ()
    notes: dict[str, str] = field(default_factory=dict)

    @cached_property
    def roots(self) -> dict[Value, Value]:
        """The value in whose storage each value lies."""
        return storage_roots(self.graph)

    def layout(self, value: Value) -> Layout:
        return self.graph.layouts.get(value, PLANAR)

    def check_fits(self, memory: int, where: str) -> None:
        """OutOfMemoryError if ``memory`` bytes, which are those of ``where``, cannot hold the
        values.

        Backends ask before they lower the plan, which takes longer the larger its images are.
        """
        largest = max(self.graph.values, key=lambda value: value.type.bytes)
        needed = max(self.arena.bytes, largest.type.bytes)
        if needed > memory:
            raise OutOfMemoryError(
                f"{largest!r} takes {largest.type.bytes} bytes, and values that are needed at "
                f"once {needed}; {where} has {memory}"
            )


def make_plan(graph: Graph, context: Context) -> Plan:
    """The plan of a graph to which all passes have been applied."""
    rewrites, notes = tuple(context.rewrites), dict(context.notes)
    arenas = plan_memory(graph), plan_groups(graph)
    return Plan(graph, arenas[0], context.target, arenas[1], rewrites, notes)
