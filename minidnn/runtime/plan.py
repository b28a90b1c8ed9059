"""The plan: an optimized graph with a place in memory for every value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minidnn._cached_property import cached_property
from minidnn.errors import OutOfMemoryError
from minidnn.fusion.target import Target
from minidnn.graph.ir import Graph, Value
from minidnn.graph.layout import Layout
from minidnn.memory.annotations import Annotations
from minidnn.memory.arena import Arena, plan_groups, plan_memory
from minidnn.memory.liveness import storage_roots
from minidnn.passes.infrastructure import Context, Rewrite
from minidnn.passes.recompute import stored_bytes


@dataclass(frozen=True)
class Plan:
    """What a backend compiles: ordered regions, how values lie, and an arena with offsets."""

    graph: Graph
    annotations: Annotations
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
        return storage_roots(self.graph, self.annotations)

    def layout(self, value: Value) -> Layout:
        return self.annotations.layout(value)

    def check_fits(self, memory: int, where: str, wider: int = 1) -> None:
        """OutOfMemoryError if ``memory`` bytes, which are those of ``where``, cannot hold the
        values.

        Backends ask before they lower the plan, which takes longer the larger its images are.

        Args:
            wider: how many bytes each of a value's takes, as a backend has them.
        """
        largest = max(self.graph.values, key=lambda value: value.type.bytes)
        outside = {*self.graph.inputs, *self.graph.outputs}
        held = self.arena.bytes + sum(value.type.bytes for value in outside)
        needed = wider * max(held, largest.type.bytes)
        if needed > memory:
            raise OutOfMemoryError(
                f"{largest!r} takes {largest.type.bytes} bytes, and values that are needed at "
                f"once {needed}; {where} has {memory}"
            )

    def check_limit(self, limit: int | None) -> None:
        """OutOfMemoryError if weights, states and values take more than ``limit`` bytes."""
        values = self.arena.bytes + self.group_arena.bytes * self.target.device.workers
        stored = stored_bytes(self.graph)
        if limit is not None and stored + values > limit:
            batches = any(value.type.rank and value.shape[0] > 1 for value in self.graph.inputs)
            raise OutOfMemoryError(
                f"memory_limit={limit} bytes; weights and states take {stored} and values, as few "
                f"as were found, {values}: {stored + values} are needed"
                f"{'; a smaller batch needs less' if batches else ''}"
            )


def make_plan(graph: Graph, context: Context) -> Plan:
    """The plan of a graph to which all passes have been applied."""
    found = context.annotations
    arena, group_arena = plan_memory(graph, found), plan_groups(graph, found)
    rewrites, notes = tuple(context.rewrites), dict(context.notes)
    return Plan(graph, found, arena, context.target, group_arena, rewrites, notes)
