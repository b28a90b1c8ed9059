"""Passes that choose buffers and offsets of values, and when sums over ranks begin.

``concat_in_place`` and ``slice_in_place`` make operands and slices of channels views of a wider
buffer; ``update_in_place`` copies new values over states; ``overlap_rank_sums`` orders nodes so
that collectives overlap computing.  Offsets go into ``Annotations.placements``, which the memory
plan uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from minidnn.fusion.collapse import NO_STACKS
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
    BufferView,
    channel_axis,
    last_reads,
    storage_roots,
)
from minidnn.passes.infrastructure import Context, Pass


def slice_in_place(graph: Graph, context: Context) -> Graph:
    """Channels that are picked from one value become a view of it.

    Handles: a TakeChannels of consecutive channels of one operand, such as the gradient of an
    operand of a concatenation; its result is a view of the operand's buffer, and nothing is copied.
    The graph keeps its nodes; the pass changes ``Annotations.placements``.
    Refuses (noted with the reason): results of the graph; views of constants, states, other views
    and inputs, except inputs that are given channels last; another layout; and views that the
    target's kernels cannot read; everything under strategies that fuse no stacks.
    """
    if context.strategy in NO_STACKS:
        return graph
    annotations = context.annotations
    for node in graph.nodes:
        if not isinstance(node.op, TakeChannels):
            continue
        if (first := node.op.first_of_run) is None:
            continue
        base = annotations.place(node.inputs[0])
        reason = _refusal_of_part(graph, node, annotations, base.channel + first, context)
        if reason is not None:
            context.notes[node.name] = f"copied: {reason}"
        elif context.allow(f"{node.name} names a part of {base.buffer.name}"):
            placement = BufferView(base.buffer, base.channel + first)
            annotations = replace(
                annotations, placements={**annotations.placements, node.output: placement}
            )
    context.annotations = annotations
    return graph


def _refusal_of_part(
    graph: Graph, node: Node, found: Annotations, channel: int, context: Context
) -> str | None:
    """Why the result of a TakeChannels cannot be a view of its operand's buffer from ``channel``
    on; None if it can."""
    value, buffer = node.output, found.place(node.inputs[0]).buffer
    if value in found.placements:
        return f"it is a slice of {found.place(value).buffer.name} already"
    if value in graph.results or buffer in graph.results:
        return "it is an output of the graph, or what a state becomes, or a part of one"
    if buffer.producer is None:
        return "it is taken of an input, a constant or a state"
    if found.is_view(buffer.producer) and not _is_channels_last_input(graph, buffer.producer):
        return "its operand is a view of another value"
    if found.layout(value) != found.layout(node.inputs[0]):
        return "it has another layout"
    for reader in graph.readers[value]:
        if found.is_view(reader):
            return "a reshape of it needs a buffer of its own"
        reason = context.target.refuse_part(reader, value, channel)
        if reason is not None:
            return f"for {reader.name}, {reason}"
    return None


def _is_channels_last_input(graph: Graph, node: Node) -> bool:
    """Whether a node transposes an input of the graph that is given channels last."""
    return isinstance(node.op, Transpose) and node.inputs[0] in graph.input_set


SLICE_IN_PLACE = Pass("slice_in_place", slice_in_place, requires=("layout", "concat_in_place"))


def update_in_place(graph: Graph, context: Context) -> Graph:
    """The new value of each state is written over the state.

    Handles: every update that is not computed in place, as ``memory.updates_in_place`` finds it, by
    a copy right after the last node that reads the state, so that the new value's lifetime is
    short.  A state that is an output, or the new value of another state, is copied first, so that
    two states may swap; such copies come after all other nodes.  The pass is no optimization, and
    takes no fuel.
    Refuses: nothing.
    """
    if not graph.updates:
        return graph
    annotations = context.annotations
    roots = storage_roots(graph, annotations)
    rewriter = Rewriter(graph)

    def copied(value: Value) -> Node:
        return Node(Identity(), [value], rewriter.fresh(f"{value.name}.copy"), value.name)

    read_outputs = [v for v in graph.outputs if roots.get(v) in graph.updates]
    copies = {value: copied(value) for value in dict.fromkeys(read_outputs)}
    outputs = [copies[v].output if v in copies else v for v in graph.outputs]
    updates, nodes = dict(graph.updates), [*graph.nodes, *copies.values()]
    graph = _with(graph, nodes, outputs, updates)
    while states := list(_elsewhere(graph, annotations)):
        copies_after: dict[int, list[Node]] = {}
        positions = _places(graph, annotations, states)
        for state in states:
            node = copied(updates[state])
            updates[state] = node.output
            copies_after.setdefault(positions[state], []).append(node)
        nodes = [n for i, node in enumerate(graph.nodes) for n in (node, *copies_after.get(i, ()))]
        graph = _with(graph, [*copies_after.get(-1, ()), *nodes], outputs, updates)
    return graph


def _places(graph: Graph, annotations: Annotations, states: list[State]) -> dict[State, int]:
    """The position of the node after which each state is written: where its new value has been
    computed and the state was read for the last time, or the last position if the new value is
    stored in a state.  -1: before the first node."""
    roots = storage_roots(graph, annotations)
    last = last_reads(graph, roots)
    ends = list(range(len(graph.nodes)))
    for group in annotations.groups:
        first = graph.position[group[0]]
        ends[first : first + len(group)] = [first + len(group) - 1] * len(group)
    positions = {}
    for state in states:
        value = graph.updates[state]
        computed = graph.position[value.producer] if value.producer is not None else -1
        position = max(computed, last.get(state, -1))
        is_in_state = isinstance(roots.get(value, value), State)
        positions[state] = (
            len(graph.nodes) - 1 if is_in_state else ends[position] if position >= 0 else -1
        )
    return positions


def _with(
    graph: Graph, nodes: list[Node], outputs: list[Value], updates: dict[State, Value]
) -> Graph:
    return Graph(graph.inputs, outputs, nodes, graph.name, graph.output_names, dict(updates))


def _elsewhere(graph: Graph, annotations: Annotations) -> Iterator[State]:
    """The states whose new value a run computes into another buffer than the state's own."""
    roots = storage_roots(graph, annotations)
    return (s for s, value in graph.updates.items() if roots.get(value) is not s)


UPDATE_IN_PLACE = Pass(
    "update_in_place",
    update_in_place,
    requires=("layout", "concat_in_place", "schedule", "batch_tiling"),
)


_PRODUCTS = (
    *(Contraction, FusedContraction, Conv2dInputGradient, Conv2dWeightGradient, MatMul),
    *(FusedGradient, FusedProduct),
)


def overlap_rank_sums(graph: Graph, context: Context) -> Graph:
    """Sums over ranks (all-reduce) overlap the nodes that do not depend on them.

    Handles: asynchronous sums (``op.lasts``), each of which begins as soon as its operands are
    computed.  Nodes that are computed for sums alone, such as a gradient and its cast, are computed
    as early as possible, which takes memory; nodes that depend on results of sums come after all
    other nodes, in the order of the sums.  Only the order changes, after the pass ``schedule``,
    which does not consider overlap.
    Refuses: sums whose results the next nodes need, such as statistics.
    """
    sums = [node for node in graph.nodes if node.op.lasts]
    if not sums or not context.allow(f"compute {len(sums)} sums over ranks beside other nodes"):
        return graph
    #: For nodes that depend on sums, the number of the last such sum, counted from 1.
    after_sum: dict[Node, int] = {}
    number = {node: i for i, node in enumerate(sums, 1)}
    for node in graph.nodes:
        last_sum = 0
        for value in node.tensors:
            producer = value.producer
            if producer is not None:
                last_sum = max(last_sum, after_sum.get(producer, 0), number.get(producer, 0))
        if last_sum:
            after_sum[node] = last_sum
    feeding = _feeding(graph, {*number, *after_sum})
    independent = [n for n in graph.nodes if not (n in after_sum or n in number or n in feeding)]
    #: For each node the index in ``independent`` of the node after which it can be computed.
    index = {node: i for i, node in enumerate(independent)}
    ready: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in feeding or (node in number and node not in after_sum):
            makers = [index[v.producer] for v in node.tensors if v.producer is not None]
            index[node] = max(makers, default=-1)
            ready.setdefault(index[node], []).append(node)
    order = list(ready.get(-1, ()))
    for i, node in enumerate(independent):
        order += (node, *ready.get(i, ()))
    rewriter = Rewriter(graph)
    for node in (*order, *sorted(after_sum, key=after_sum.__getitem__)):
        rewriter.keep(node)
    return rewriter.finish()


def _feeding(graph: Graph, others: Collection[Node]) -> set[Node]:
    """The nodes whose results only sums over ranks read, directly or through other such nodes.  The
    search ends at products: in the end the whole backward pass is computed for sums."""
    feeding: set[Node] = set()
    passing: set[Node] = set()
    results = set(graph.results)
    for node in reversed(graph.nodes):
        if node in others or results.intersection(node.outputs):
            continue
        readers = [reader for value in node.outputs for reader in graph.readers[value]]
        if readers and all(reader.op.lasts or reader in passing for reader in readers):
            feeding.add(node)
            if not isinstance(node.op, _PRODUCTS):
                passing.add(node)
    return feeding


OVERLAP_RANK_SUMS = Pass("overlap_rank_sums", overlap_rank_sums, requires=("schedule",))


def concat_in_place(graph: Graph, context: Context) -> Graph:
    """Operands of a concatenation of channels are written straight into its result.

    Handles: a Concat along channels, or of vectors, whose operands' producers can write slices;
    where that is predicted to be cheaper than a copy, the operand becomes a view of the Concat's
    buffer, and the Concat no longer copies it.  A Concat whose operands are already adjacent views
    of one buffer, as in a dense block, is itself a view of that buffer.  The graph keeps its nodes;
    the pass changes ``Annotations.placements``.
    Refuses (noted with the reason): graph inputs, constants, values placed elsewhere, values that
    are operands twice, vectors that would not begin at a cache line, and what the target refuses;
    everything under strategies that fuse no stacks, except where kernels are those of any size.
    """
    if context.strategy in NO_STACKS and not context.target.any_size:
        return graph
    placements: dict[Value, BufferView] = {}
    for node in reversed(graph.nodes):
        if isinstance(node.op, Concat) and _is_of_channels(node, node.op):
            _place(graph, node, placements, context)
    context.annotations = replace(context.annotations, placements=placements)
    return graph


def _place(graph: Graph, node: Node, placements: dict[Value, BufferView], context: Context) -> None:
    """Chooses the offsets of the operands of one Concat, or of its result."""
    annotations = context.annotations
    common = _common_buffer(node, placements)
    is_reshaped = any(_is_reshape(annotations, reader) for reader in graph.readers[node.output])
    is_free = node.output not in placements and node.output not in graph.results and not is_reshaped
    if common is not None and is_free:
        if context.allow(f"{node.name} names a part of {common.buffer.name}"):
            placements[node.output] = common
        return
    base = placements.get(node.output, BufferView(node.output, 0))
    channel = base.channel
    for value in node.inputs:
        reason = _refusal(graph, node, value, channel, placements, context)
        if reason is None:
            if not context.allow(f"write {value.name} into {base.buffer.name}"):
                return
            placements[value] = BufferView(base.buffer, channel)
        elif placements.get(value) != BufferView(base.buffer, channel):
            context.notes[value.name] = f"copied into {node.name}: {reason}"
        channel += value.shape[channel_axis(value)]


def _is_of_channels(node: Node, op: Concat) -> bool:
    return op.axis % node.output.type.rank == channel_axis(node.output)


def _is_reshape(found: Annotations, node: Node) -> bool:
    """Whether a node may view its operand's buffer in another shape, for which the operand has to
    be contiguous."""
    return isinstance(node.op, Reshaping) or found.is_view(node)


def _common_buffer(node: Node, placements: dict[Value, BufferView]) -> BufferView | None:
    """The offset of a Concat whose operands are already adjacent views of one buffer; None if they
    are not."""
    first = placements.get(node.inputs[0])
    if first is None:
        return None
    channel = first.channel
    for value in node.inputs:
        if placements.get(value) != BufferView(first.buffer, channel):
            return None
        channel += value.shape[channel_axis(value)]
    return first


def _refusal(
    graph: Graph,
    node: Node,
    value: Value,
    channel: int,
    placements: dict[Value, BufferView],
    context: Context,
) -> str | None:
    """Why a value cannot be written straight into the buffer of the Concat ``node``, from
    ``channel`` on; None if it can."""
    producer, annotations = value.producer, context.annotations
    if producer is None:
        return "it is an input, a constant or a state"
    if value in placements:
        return f"it is a slice of {placements[value].buffer.name} already"
    if value in graph.results:
        return "it is an output of the graph, or what a state becomes"
    if node.inputs.count(value) > 1:
        return "it is an operand twice"
    if any(_is_reshape(annotations, neighbour) for neighbour in (producer, *graph.readers[value])):
        return "a reshape of it needs a buffer of its own"
    if isinstance(producer.op, Reorder):
        return "it is a reordered copy"
    if annotations.layout(value) != annotations.layout(node.output):
        return "it has another layout"
    offset = channel * ITEMSIZE[value.dtype]
    if value.type.rank == 1 and offset % ALIGNMENT:
        return f"it would begin at byte {offset}, which is no multiple of {ALIGNMENT}"
    reason = context.target.refuse_slice(producer, value, channel)
    if reason is not None:
        return reason
    penalty = context.target.slice_seconds(producer, value)
    copy = 2 * value.type.bytes / context.target.device.bandwidth
    if penalty > copy:
        return f"writing a slice costs {penalty * 1e6:.1f} us more, a copy {copy * 1e6:.1f} us"
    return None


CONCAT_IN_PLACE = Pass("concat_in_place", concat_in_place, requires=("layout",))
