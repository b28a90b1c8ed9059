"""rederive: the backward pass computes cheap values again, of values that are kept for it anyway.

A value of the forward pass that the backward pass reads lies in memory in between.  An element-wise
one need not, if all it is computed of is kept in any case, or is as small as a number for each
channel: the region that reads it computes it once more, and reads what it is computed of instead.
In training, this leaves of a convolution, a batch normalization and a ReLU the convolution's result
and the ReLU's, where the distances from the mean and the normalized values would be kept, too.

Handles: values of element-wise nodes that only nodes which join stacks read in the backward pass,
as long as what they are computed of is a short chain away from values that are kept, and computing
it again is predicted to take no longer than to write and to read it.  The nodes of the copies are
those of the original, on the same operands, so that they give the same bits.  Each layer's gradient
has copies of its own.
In a graph in half precision without updates, which runs forwards or backwards for somebody else,
the forward pass is what is computed of inputs alone, element by element.
A value that the backward pass reads whole, too, as a convolution's operand, is kept; those readers
compute it again that read what it is computed of in any case, as a mask's do.
A window over such values that needs no gradient, as the places of maxima, is computed where it is
read if that is predicted to take no longer than to write and to read it, and else with the forward
pass, which keeps its result.
Refuses: values without such readers; everything under strategies that compute layer by layer.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from minidnn.fusion.collapse import APART
from minidnn.fusion.stacks import why_not_fusable
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Windowed
from minidnn.graph.operators import Formula, Transpose
from minidnn.passes.infrastructure import Context, Pass

MOST_NODES = 6
"""A value that takes more nodes than that is kept."""
_RECORDED = re.compile(r"\.gradient(\.\d+)?$")
SMALL = 1 / 16
"""What is no larger than this part of a value is kept for it."""


def rederive(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART:
        return graph
    if graph.updates:
        forward = forward_nodes(graph)
        forward |= _kept_windows(graph, forward, context)
    elif context.mixed:
        forward = _nodes_of_inputs(graph)
    else:
        return graph
    chains, beside = _chains(graph, forward, context)
    if not chains:
        return graph
    rewriter = Rewriter(graph)
    copies: dict[tuple[Value, str], Value] = {}

    def again(value: Value, reader: Node) -> Value:
        """A copy of what computes a value, for the gradient of a layer."""
        for node in chains[value]:
            if (node.output, reader.source) not in copies:
                inputs = [copies.get((v, reader.source), rewriter.value(v)) for v in node.inputs]
                name = rewriter.fresh(f"{node.name}.again")
                new = rewriter.add(node.op, inputs, name, node.source)
                copies[node.output, reader.source] = new.output
        return copies[value, reader.source]

    for node in graph.nodes:
        there = {v for v in node.inputs if v in chains and (v not in beside or node in beside[v])}
        if node in forward or not there:
            rewriter.keep(node)
            continue
        inputs = [again(v, node) if v in there else rewriter.value(v) for v in node.inputs]
        new = rewriter.add(node.op, inputs, node.name, node.source)
        for old, value in zip(node.outputs, new.outputs, strict=True):
            rewriter.replace(old, value)
    return rewriter.finish()


def forward_nodes(graph: Graph) -> set[Node]:
    """The nodes that results are computed by, other than gradients; all others compute these, and
    what states become."""
    wanted, found = {v for v in graph.outputs if not _is_gradient(v)}, set[Node]()
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            found.add(node)
            wanted.update(node.inputs)
    return found


def _is_gradient(value: Value) -> bool:
    """Whether a rule has recorded what makes a value, as it is or before it was converted."""
    node = value.producer
    while node is not None and isinstance(node.op, Formula) and node.op.title == "Cast":
        node = node.inputs[0].producer
    return node is not None and _RECORDED.search(node.name) is not None


def _nodes_of_inputs(graph: Graph) -> set[Node]:
    """Element-wise nodes of inputs alone, and moves in front of them: in a graph that runs
    backwards by itself they are the forward pass's, on what was kept for it."""
    found: set[Node] = set()
    for node in graph.nodes:
        if isinstance(node.op, (Elementwise, Transpose)):
            made = {value.producer for value in node.inputs} - {None}
            if made <= found:
                found.add(node)
    return found


def _kept_windows(graph: Graph, forward: set[Node], context: Context) -> set[Node]:
    """The other windows over values of the forward pass, other than those that are computed faster
    than they are written and read."""
    device = context.target.device
    found: set[Node] = set()
    for node in graph.nodes:
        made = {value.producer for value in node.inputs} - {None}
        if node in forward or not isinstance(node.op, Windowed) or not made <= forward | found:
            continue
        reading = sum(
            value.type.bytes
            for value in dict.fromkeys(node.inputs)
            if not _is_read_beside(graph, node, value, forward)
        )
        seconds = _operations(node) / device.operations + reading / device.bandwidth
        if seconds > 2 * node.output.type.bytes / device.bandwidth:
            found.add(node)
    return found


def _is_read_beside(graph: Graph, window: Node, value: Value, forward: set[Node]) -> bool:
    """Whether the gradient reads a value anyway where it would compute a window of it.

    Not so in half precision, where sums are another region's, nor where fewer windows than elements
    make it likely.
    """
    if value.dtype != "float32" or value.type.bytes > window.output.type.bytes:
        return False
    return not forward.issuperset({*graph.readers[value]} - {window})


def _chains(
    graph: Graph, forward: set[Node], context: Context
) -> tuple[dict[Value, list[Node]], dict[Value, set[Node]]]:
    """The values that are computed again, by which nodes each of them is, in order; and, of those
    that are kept all the same, for which readers."""
    found: dict[Value, list[Node]] = {}
    beside: dict[Value, set[Node]] = {}
    kept = {*graph.inputs, *graph.states}
    for node in graph.nodes:
        if node not in forward:
            continue
        for value in node.outputs:
            readers = [reader for reader in graph.readers[value] if reader not in forward]
            if not readers:
                continue
            chain, read = _chain(graph, value, kept, context)
            whole = value in graph.results or any(map(why_not_fusable, readers))
            which = set(readers)
            if whole:
                which = {reader for reader in readers if _reads_too(graph, reader, read)}
            if chain and which and context.allow(f"compute {value.name} again where it is read"):
                found[value] = chain
                if whole:
                    beside[value] = which
            if value not in found or whole:
                kept.add(value)
    return found, beside


def _reads_too(graph: Graph, reader: Node, read: Collection[Value]) -> bool:
    """Whether a reader of a value, or what reads its result element by element, reads what the
    value is computed of, too: then the value need not be read for it."""
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
    """The nodes that compute a value of values that are kept, and these; none if that would take
    longer than to read it."""
    found: dict[Node, None] = {}
    read: dict[Value, None] = {}
    pending = [value]
    while pending:
        node = pending.pop().producer
        if node is None or not isinstance(node.op, Elementwise) or why_not_fusable(node):
            return [], {}
        found[node] = None
        if len(found) > MOST_NODES:
            return [], {}
        for operand in node.tensors:
            if operand.type.bytes > SMALL * value.type.bytes:
                if operand in kept:
                    read[operand] = None
                else:
                    pending.append(operand)
    device = context.target.device
    reading = sum(operand.type.bytes for operand in read) / device.bandwidth
    computing = sum(_operations(node) for node in found) / device.operations
    if max(reading, computing) > 2 * value.type.bytes / device.bandwidth:
        return [], {}
    return sorted(found, key=graph.position.__getitem__), read


def _operations(node: Node) -> int:
    return node.op.operations(tuple(v.type for v in node.inputs), (node.output.type,))


REDERIVE = Pass("rederive", rederive)
