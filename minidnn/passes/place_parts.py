"""place_parts: channels that are taken of one value are read where they lie.

Handles: a TakeChannels that takes channels of one operand that follow each other, such as the
gradient of a join's operand; its result is a name for a part of the operand's storage, and it
copies nothing.  The graph keeps its nodes; what changes is where values lie
(``Annotations.placements``).
Refuses (noted with the reason): results of the graph, parts of constants, states, views and inputs
but those that are given channels last, another layout, and what the target's kernels do not read;
everything under strategies that compute layer by layer.
"""

from __future__ import annotations

from dataclasses import replace

from minidnn.fusion.collapse import APART
from minidnn.graph.ir import Graph, Node
from minidnn.graph.operators import TakeChannels, Transpose
from minidnn.memory.annotations import Annotations, Placement
from minidnn.passes.infrastructure import Context, Pass


def place_parts(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART:
        return graph
    found = context.annotations
    for node in graph.nodes:
        if not isinstance(node.op, TakeChannels):
            continue
        if (first := node.op.first_of_run) is None:
            continue
        base = found.place(node.inputs[0])
        reason = _refusal(graph, node, found, base.channel + first, context)
        if reason is not None:
            context.notes[node.name] = f"copied: {reason}"
        elif context.allow(f"{node.name} names a part of {base.buffer.name}"):
            part = Placement(base.buffer, base.channel + first)
            found = replace(found, placements={**found.placements, node.output: part})
    context.annotations = found
    return graph


def _refusal(
    graph: Graph, node: Node, found: Annotations, channel: int, context: Context
) -> str | None:
    """Why what a node takes is not read where it lies, from that channel on; None if it is."""
    value, buffer = node.output, found.place(node.inputs[0]).buffer
    if value in found.placements:
        return f"it lies in {found.place(value).buffer.name}"
    if value in graph.results or buffer in graph.results:
        return "it is an output of the graph, or what a state becomes, or a part of one"
    if buffer.producer is None:
        return "it is taken of an input, a constant or a state"
    if found.is_view(buffer.producer) and not _is_turned_input(graph, buffer.producer):
        return "what it is taken of lies in another value"
    if found.layout(value) != found.layout(node.inputs[0]):
        return "it has another layout"
    for reader in graph.readers[value]:
        if found.is_view(reader):
            return "a reshape of it needs it to lie by itself"
        reason = context.target.refuse_part(reader, value, channel)
        if reason is not None:
            return f"for {reader.name}, {reason}"
    return None


def _is_turned_input(graph: Graph, node: Node) -> bool:
    """Whether a node gives an input that is given channels last."""
    return isinstance(node.op, Transpose) and node.inputs[0] in graph.inputs


PLACE_PARTS = Pass("place_parts", place_parts, requires=("layout", "place_concat"))
