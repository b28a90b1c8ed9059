"""rederive: the backward pass recomputes cheap values from values that are kept for it anyway.

A value of the forward pass that the backward pass reads is live in between.  An element-wise one
need not be, if its operands are kept in any case, or are as small as a vector over channels: the
region that reads it computes it once more, and reads its operands instead.  In training, of a
convolution, a batch normalization and a ReLU only the convolution's and the ReLU's results are
kept, not the differences from the mean and the normalized values.

Handles: values of element-wise nodes whose readers in the backward pass can all be part of stacks,
if a short chain of nodes computes them from kept values, and recomputing is predicted to take no
longer than writing and reading the value.  The copies have the same operators and operands as the
original nodes, so that they give the same bits.  Each layer's gradient has copies of its own.
In a mixed-precision graph without updates, which computes the forward or the backward pass of
another framework, the forward pass is what element-wise nodes compute from inputs alone.
A value that the backward pass also reads as a whole, as the operand of a convolution, is kept; only
readers that read its operands in any case, as those of a mask do, recompute it.
A window over such values that needs no gradient, such as the positions of maxima, is computed where
it is read if that is predicted to take no longer than writing and reading it; otherwise it is
computed with the forward pass, and its result is kept.
Refuses: values without such readers; everything under strategies that fuse no stacks.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from minidnn.fusion.collapse import NO_STACKS
from minidnn.fusion.stacks import why_not_fusable
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Windowed
from minidnn.graph.operators import Formula, Transpose
from minidnn.passes.infrastructure import Context, Pass

MOST_NODES = 6
"""Nodes that recompute a value at most; a value that takes more is kept."""
_RECORDED = re.compile(r"\.gradient(\.\d+)?$")
SMALL = 1 / 16
"""Operands of at most this fraction of a value's size are kept for recomputing it."""


def rederive(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in NO_STACKS:
        return graph
    if graph.updates:
        forward = forward_nodes(graph)
        forward |= _kept_windows(graph, forward, context)
    elif context.mixed:
        forward = _nodes_of_inputs(graph)
    else:
        return graph
    chains, restricted = _chains(graph, forward, context)
    if not chains:
        return graph
    rewriter = Rewriter(graph)
    copies: dict[tuple[Value, str], Value] = {}

    def copied(value: Value, reader: Node) -> Value:
        """A value recomputed by copies, for the layer to whose gradient ``reader`` belongs."""
        for node in chains[value]:
            if (node.output, reader.source) not in copies:
                inputs = [copies.get((v, reader.source), rewriter.value(v)) for v in node.inputs]
                name = rewriter.fresh(f"{node.name}.again")
                new = rewriter.add(node.op, inputs, name, node.source)
                copies[node.output, reader.source] = new.output
        return copies[value, reader.source]

    for node in graph.nodes:
        recomputed = {
            v for v in node.inputs if v in chains and (v not in restricted or node in restricted[v])
        }
        if node in forward or not recomputed:
            rewriter.keep(node)
            continue
        inputs = [copied(v, node) if v in recomputed else rewriter.value(v) for v in node.inputs]
        new = rewriter.add(node.op, inputs, node.name, node.source)
        for old, value in zip(node.outputs, new.outputs, strict=True):
            rewriter.replace(old, value)
    return rewriter.finish()


def forward_nodes(graph: Graph) -> set[Node]:
    """The nodes that compute outputs other than gradients; all other nodes compute gradients and
    new values of states."""
    wanted, nodes = {v for v in graph.outputs if not _is_gradient(v)}, set[Node]()
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            nodes.add(node)
            wanted.update(node.inputs)
    return nodes


def _is_gradient(value: Value) -> bool:
    """Whether a differentiation rule recorded the producer of a value, casts apart."""
    node = value.producer
    while node is not None and isinstance(node.op, Formula) and node.op.title == "Cast":
        node = node.inputs[0].producer
    return node is not None and _RECORDED.search(node.name) is not None


def _nodes_of_inputs(graph: Graph) -> set[Node]:
    """The element-wise nodes and transposes that follow from inputs alone: in a graph of a backward
    pass alone these belong to the forward pass, and the inputs were kept for them."""
    nodes: set[Node] = set()
    for node in graph.nodes:
        if isinstance(node.op, (Elementwise, Transpose)):
            producers = {value.producer for value in node.inputs} - {None}
            if producers <= nodes:
                nodes.add(node)
    return nodes


def _kept_windows(graph: Graph, forward: set[Node], context: Context) -> set[Node]:
    """The windows over values of the forward pass that are computed with it though no output needs
    them, since they take longer to compute than to write and to read."""
    device = context.target.device
    windows: set[Node] = set()
    for node in graph.nodes:
        producers = {value.producer for value in node.inputs} - {None}
        if (
            node in forward
            or not isinstance(node.op, Windowed)
            or not producers <= forward | windows
        ):
            continue
        reading = sum(
            value.type.bytes
            for value in dict.fromkeys(node.inputs)
            if not _reads_operand_anyway(graph, node, value, forward)
        )
        seconds = _operations(node) / device.operations + reading / device.bandwidth
        if seconds > 2 * node.output.type.bytes / device.bandwidth:
            windows.add(node)
    return windows


def _reads_operand_anyway(graph: Graph, window: Node, value: Value, forward: set[Node]) -> bool:
    """Whether the region of the gradient that would compute a window reads the window's operand in
    any case.

    This is assumed to be false in half precision, where another region computes sums, and where the
    result of the window is smaller than its operand.
    """
    if value.dtype != "float32" or value.type.bytes > window.output.type.bytes:
        return False
    return not forward.issuperset({*graph.readers[value]} - {window})


def _chains(
    graph: Graph, forward: set[Node], context: Context
) -> tuple[dict[Value, list[Node]], dict[Value, set[Node]]]:
    """The values that are recomputed, each with the nodes that do it, in order; and, for those that
    are kept all the same, the readers that recompute them."""
    chains: dict[Value, list[Node]] = {}
    restricted: dict[Value, set[Node]] = {}
    kept = {*graph.inputs, *graph.states}
    for node in graph.nodes:
        if node not in forward:
            continue
        for value in node.outputs:
            readers = [reader for reader in graph.readers[value] if reader not in forward]
            if not readers:
                continue
            chain, read = _chain(graph, value, kept, context)
            is_kept = value in graph.results or any(map(why_not_fusable, readers))
            recomputing_readers = set(readers)
            if is_kept:
                recomputing_readers = {
                    reader for reader in readers if _reads_all_anyway(graph, reader, read)
                }
            if (
                chain
                and recomputing_readers
                and context.allow(f"compute {value.name} again where it is read")
            ):
                chains[value] = chain
                if is_kept:
                    restricted[value] = recomputing_readers
            if value not in chains or is_kept:
                kept.add(value)
    return chains, restricted


def _reads_all_anyway(graph: Graph, reader: Node, read: Collection[Value]) -> bool:
    """Whether a reader of a value, or the element-wise nodes after that reader, read all the kept
    values ``read`` from which the value is computed: then recomputing it reads nothing more."""
    missing, pending, seen = set(read), [reader], set[Node]()
    while pending and len(seen) <= MOST_NODES:
        node = pending.pop()
        if node in seen or why_not_fusable(node) or not isinstance(node.op, Elementwise):
            continue
        seen.add(node)
        missing.difference_update(node.inputs)
        pending += graph.readers[node.output]
    return reader in seen and not missing


def _chain(
    graph: Graph, value: Value, kept: set[Value], context: Context
) -> tuple[list[Node], dict[Value, None]]:
    """The nodes that compute a value from kept values, and these values; none if that would take
    longer than writing and reading the value."""
    nodes: dict[Node, None] = {}
    read: dict[Value, None] = {}
    pending = [value]
    while pending:
        node = pending.pop().producer
        if node is None or not isinstance(node.op, Elementwise) or why_not_fusable(node):
            return [], {}
        nodes[node] = None
        if len(nodes) > MOST_NODES:
            return [], {}
        for operand in node.tensors:
            if operand.type.bytes > SMALL * value.type.bytes:
                if operand in kept:
                    read[operand] = None
                else:
                    pending.append(operand)
    device = context.target.device
    reading = sum(operand.type.bytes for operand in read) / device.bandwidth
    computing = sum(_operations(node) for node in nodes) / device.operations
    if max(reading, computing) > 2 * value.type.bytes / device.bandwidth:
        return [], {}
    return sorted(nodes, key=graph.position.__getitem__), read


def _operations(node: Node) -> int:
    return node.op.operations(tuple(v.type for v in node.inputs), (node.output.type,))


REDERIVE = Pass("rederive", rederive)
