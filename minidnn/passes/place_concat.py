"""place_concat: operands of a join of channels are written where the join wants them.

Handles: a Concat along channels, or of vectors, whose operands' producers can write slices; where
that is predicted to be cheaper than the copy, the operand is placed in the joined value, and the
join copies it no more.  A join whose operands all lie side by side in one buffer already, as in a
dense block, is itself only a name for a part of that buffer.  The graph keeps its nodes; what
changes is where values lie (``Annotations.placements``).
Refuses (noted with the reason): graph inputs, constants, values placed elsewhere, values that
are operands twice, vectors that would not begin at a cache line, and what the target refuses;
everything under strategies that compute layer by layer.
"""

from __future__ import annotations

from dataclasses import replace

from minidnn.fusion.collapse import APART
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Reshaping
from minidnn.graph.operators import Concat, Reorder
from minidnn.graph.types import ITEMSIZE
from minidnn.memory.annotations import ALIGNMENT, Annotations, Placement, channel_axis
from minidnn.passes.infrastructure import Context, Pass


def place_concat(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART and not context.target.any_size:
        return graph
    placements: dict[Value, Placement] = {}
    for node in reversed(graph.nodes):
        if isinstance(node.op, Concat) and _is_of_channels(node, node.op):
            _place(graph, node, placements, context)
    context.annotations = replace(context.annotations, placements=placements)
    return graph


def _place(graph: Graph, node: Node, placements: dict[Value, Placement], context: Context) -> None:
    found = context.annotations
    shared = _common_buffer(node, placements)
    whole = any(_is_reshape(found, reader) for reader in graph.readers[node.output])
    free = node.output not in placements and node.output not in graph.results and not whole
    if shared is not None and free:
        if context.allow(f"{node.name} names a part of {shared.buffer.name}"):
            placements[node.output] = shared
        return
    base = placements.get(node.output, Placement(node.output, 0))
    channel = base.channel
    for value in node.inputs:
        reason = _refusal(graph, node, value, channel, placements, context)
        if reason is None:
            if not context.allow(f"write {value.name} into {base.buffer.name}"):
                return
            placements[value] = Placement(base.buffer, channel)
        elif placements.get(value) != Placement(base.buffer, channel):
            context.notes[value.name] = f"copied into {node.name}: {reason}"
        channel += value.shape[channel_axis(value)]


def _is_of_channels(node: Node, op: Concat) -> bool:
    return op.axis % node.output.type.rank == channel_axis(node.output)


def _is_reshape(found: Annotations, node: Node) -> bool:
    """Whether a node may give its operand's storage another shape, for which rows and columns
    have to follow each other."""
    return isinstance(node.op, Reshaping) or found.is_view(node)


def _common_buffer(node: Node, placements: dict[Value, Placement]) -> Placement | None:
    """Where a join lies if its operands lie side by side already."""
    first = placements.get(node.inputs[0])
    if first is None:
        return None
    channel = first.channel
    for value in node.inputs:
        if placements.get(value) != Placement(first.buffer, channel):
            return None
        channel += value.shape[channel_axis(value)]
    return first


def _refusal(
    graph: Graph,
    node: Node,
    value: Value,
    channel: int,
    placements: dict[Value, Placement],
    context: Context,
) -> str | None:
    """Why a value is not written straight into a join's buffer, from that channel on; None if it
    is."""
    producer, found = value.producer, context.annotations
    if producer is None:
        return "it is an input, a constant or a state"
    if value in placements:
        return f"it lies in {placements[value].buffer.name} already"
    if value in graph.results:
        return "it is an output of the graph, or what a state becomes"
    if node.inputs.count(value) > 1:
        return "it is an operand twice"
    if any(_is_reshape(found, near) for near in (producer, *graph.readers[value])):
        return "a reshape of it needs it to lie by itself"
    if isinstance(producer.op, Reorder):
        return "it is a reordered copy"
    if found.layout(value) != found.layout(node.output):
        return "it has another layout"
    begin = channel * ITEMSIZE[value.dtype]
    if value.type.rank == 1 and begin % ALIGNMENT:
        return f"it would begin at byte {begin}, which is no multiple of {ALIGNMENT}"
    reason = context.target.refuse_slice(producer, value, channel)
    if reason is not None:
        return reason
    penalty = context.target.slice_seconds(producer, value)
    copy = 2 * value.type.bytes / context.target.device.bandwidth
    if penalty > copy:
        return f"writing a slice costs {penalty * 1e6:.1f} us more, a copy {copy * 1e6:.1f} us"
    return None


PLACE_CONCAT = Pass("place_concat", place_concat, requires=("layout",))
