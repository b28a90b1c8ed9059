"""Where values lie: parts and joins of channels, states' updates, and sums over ranks in time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from minidnn.fusion.collapse import APART
from minidnn.fusion.product import FusedProduct
from minidnn.fusion.region import FusedContraction, FusedGradient
from minidnn.graph.ir import Graph, Node, Rewriter, State, Value
from minidnn.graph.operator import Contraction, Reshaping
from minidnn.graph.operators import (
    Concat,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    Identity,
    MatMul,
    Reorder,
    TakeChannels,
    Transpose,
)
from minidnn.graph.types import ITEMSIZE
from minidnn.memory import (
    ALIGNMENT,
    Annotations,
    Placement,
    channel_axis,
    last_reads,
    storage_roots,
)
from minidnn.passes.infrastructure import Context, Pass


def place_parts(graph: Graph, context: Context) -> Graph:
    """Channels that are taken of one value are read where they lie.

    Handles: a TakeChannels that takes channels of one operand that follow each other, such as the
    gradient of a join's operand; its result is a name for a part of the operand's storage, and it
    copies nothing.  The graph keeps its nodes; what changes is where values lie
    (``Annotations.placements``).
    Refuses (noted with the reason): results of the graph, parts of constants, states, views and
    inputs but those that are given channels last, another layout, and what the target's kernels do
    not read; everything under strategies that compute layer by layer.
    """
    if context.strategy in APART:
        return graph
    found = context.annotations
    for node in graph.nodes:
        if not isinstance(node.op, TakeChannels):
            continue
        if (first := node.op.first_of_run) is None:
            continue
        base = found.place(node.inputs[0])
        reason = _refusal_of_part(graph, node, found, base.channel + first, context)
        if reason is not None:
            context.notes[node.name] = f"copied: {reason}"
        elif context.allow(f"{node.name} names a part of {base.buffer.name}"):
            part = Placement(base.buffer, base.channel + first)
            found = replace(found, placements={**found.placements, node.output: part})
    context.annotations = found
    return graph


def _refusal_of_part(
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
    return isinstance(node.op, Transpose) and node.inputs[0] in graph.input_set


PLACE_PARTS = Pass("place_parts", place_parts, requires=("layout", "place_concat"))


def place_updates(graph: Graph, context: Context) -> Graph:
    """What states become is written over them.

    Handles: every update that is not computed straight over its state, as
    ``memory.updates_in_place`` has them, by a copy behind the last node that reads the state, so
    that what is copied does not lie in memory for long.  A state that is an output, or that another
    one becomes, is read by a copy first, so that two states may become each other; such copies are
    behind all other nodes.  It is no optimization, and takes no fuel.
    Refuses: nothing.
    """
    if not graph.updates:
        return graph
    annotations = context.annotations
    roots = storage_roots(graph, annotations)
    rewriter = Rewriter(graph)

    def copied(value: Value) -> Node:
        return Node(Identity(), [value], rewriter.fresh(f"{value.name}.copy"), value.name)

    given = [v for v in graph.outputs if roots.get(v) in graph.updates]
    copies = {value: copied(value) for value in dict.fromkeys(given)}
    outputs = [copies[v].output if v in copies else v for v in graph.outputs]
    updates, nodes = dict(graph.updates), [*graph.nodes, *copies.values()]
    graph = _with(graph, nodes, outputs, updates)
    while left := list(_elsewhere(graph, annotations)):
        behind: dict[int, list[Node]] = {}
        places = _places(graph, annotations, left)
        for state in left:
            node = copied(updates[state])
            updates[state] = node.output
            behind.setdefault(places[state], []).append(node)
        nodes = [n for i, node in enumerate(graph.nodes) for n in (node, *behind.get(i, ()))]
        graph = _with(graph, [*behind.get(-1, ()), *nodes], outputs, updates)
    return graph


def _places(graph: Graph, annotations: Annotations, left: list[State]) -> dict[State, int]:
    """Behind which node each state is written: once its new value is computed and the state was
    read for the last time, or behind the last node if that value lies in a state."""
    roots = storage_roots(graph, annotations)
    last = last_reads(graph, roots)
    ends = list(range(len(graph.nodes)))
    for group in annotations.groups:
        first = graph.position[group[0]]
        ends[first : first + len(group)] = [first + len(group) - 1] * len(group)
    found = {}
    for state in left:
        value = graph.updates[state]
        made = graph.position[value.producer] if value.producer is not None else -1
        place = max(made, last.get(state, -1))
        stored = isinstance(roots.get(value, value), State)
        found[state] = len(graph.nodes) - 1 if stored else ends[place] if place >= 0 else -1
    return found


def _with(
    graph: Graph, nodes: list[Node], outputs: list[Value], updates: dict[State, Value]
) -> Graph:
    return Graph(graph.inputs, outputs, nodes, graph.name, graph.output_names, dict(updates))


def _elsewhere(graph: Graph, annotations: Annotations) -> Iterator[State]:
    """The states that a run does not leave in their own storage."""
    roots = storage_roots(graph, annotations)
    return (s for s, value in graph.updates.items() if roots.get(value) is not s)


PLACE_UPDATES = Pass(
    "place_updates", place_updates, requires=("layout", "place_concat", "schedule", "by_image")
)


_PRODUCTS = (
    *(Contraction, FusedContraction, Conv2dInputGradient, Conv2dWeightGradient, MatMul),
    *(FusedGradient, FusedProduct),
)


def place_sums(graph: Graph, context: Context) -> Graph:
    """Sums over ranks go on beside the nodes that do not need them.

    Handles: sums that may be computed beside others, which each begin as soon as their operands are
    there.  What is computed for them alone, such as a gradient and its cast, is computed at once,
    which takes memory; what depends on results of sums comes behind all other nodes, in the order
    of the sums.  Only the order changes, after the pass schedule, which knows of no such sums.
    Refuses: sums that the next nodes need, such as statistics.
    """
    sums = [node for node in graph.nodes if node.op.lasts]
    if not sums or not context.allow(f"compute {len(sums)} sums over ranks beside other nodes"):
        return graph
    #: Of what depends on sums the number of the last one, counted from 1.
    behind: dict[Node, int] = {}
    number = {node: i for i, node in enumerate(sums, 1)}
    for node in graph.nodes:
        found = 0
        for value in node.tensors:
            made = value.producer
            if made is not None:
                found = max(found, behind.get(made, 0), number.get(made, 0))
        if found:
            behind[node] = found
    feeding = _feeding(graph, {*number, *behind})
    first = [n for n in graph.nodes if not (n in behind or n in number or n in feeding)]
    #: Behind which of these each node can be computed.
    place = {node: i for i, node in enumerate(first)}
    ready: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in feeding or (node in number and node not in behind):
            makers = [place[v.producer] for v in node.tensors if v.producer is not None]
            place[node] = max(makers, default=-1)
            ready.setdefault(place[node], []).append(node)
    order = list(ready.get(-1, ()))
    for i, node in enumerate(first):
        order += (node, *ready.get(i, ()))
    rewriter = Rewriter(graph)
    for node in (*order, *sorted(behind, key=behind.__getitem__)):
        rewriter.keep(node)
    return rewriter.finish()


def _feeding(graph: Graph, others: Collection[Node]) -> set[Node]:
    """The nodes whose results go into sums over ranks alone, or through such nodes; of products
    the last ones, for the whole backward pass is made for sums in the end."""
    found: set[Node] = set()
    passing: set[Node] = set()
    given = set(graph.results)
    for node in reversed(graph.nodes):
        if node in others or given.intersection(node.outputs):
            continue
        readers = [reader for value in node.outputs for reader in graph.readers[value]]
        if readers and all(reader.op.lasts or reader in passing for reader in readers):
            found.add(node)
            if not isinstance(node.op, _PRODUCTS):
                passing.add(node)
    return found


PLACE_SUMS = Pass("place_sums", place_sums, requires=("schedule",))


def place_concat(graph: Graph, context: Context) -> Graph:
    """Operands of a join of channels are written where the join wants them.

    Handles: a Concat along channels, or of vectors, whose operands' producers can write slices;
    where that is predicted to be cheaper than the copy, the operand is placed in the joined value,
    and the join copies it no more.  A join whose operands all lie side by side in one buffer
    already, as in a dense block, is itself only a name for a part of that buffer.  The graph keeps
    its nodes; what changes is where values lie (``Annotations.placements``).
    Refuses (noted with the reason): graph inputs, constants, values placed elsewhere, values that
    are operands twice, vectors that would not begin at a cache line, and what the target refuses;
    everything under strategies that compute layer by layer.
    """
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
