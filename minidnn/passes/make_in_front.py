"""make_in_front: what a gradient of a convolution reads is made by the kernel of that gradient.

Behind batch normalization the gradient of a convolution's result is computed point by point of
another gradient and the result itself.  Both gradients of the convolution read it.  A kernel of the
one for the image that computes it, and stores it for the other, saves reading it again.  Which
kernel computes the gradient stays open; one that computes nothing in front follows the sequence's.

Handles: gradients for images, with sums behind them or without, and sequences of point-wise nodes
whose only result they read and others, too.
Refuses: whatever the target refuses (noted with its reason); everything under strategies that leave
layers apart.
"""

from __future__ import annotations

from minidnn.fusion.collapse import UNFUSED
from minidnn.fusion.region import FusedGradient, FusedSequence
from minidnn.fusion.stacks import Groups
from minidnn.graph.ir import Graph, Node
from minidnn.graph.operator import Elementwise
from minidnn.graph.operators import Conv2dInputGradient
from minidnn.passes.contract import MakeRegion, contract, flat
from minidnn.passes.infrastructure import Context, Pass


def make_in_front(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in UNFUSED:
        return graph
    groups = Groups(graph)
    found: list[tuple[list[Node], MakeRegion]] = []
    for node in graph.nodes:
        gradient = _gradient(node)
        sequence = None if gradient is None else _made_in_front(graph, node, gradient)
        if gradient is None or sequence is None:
            continue
        reason = context.target.refuse_front(gradient, sequence)
        if reason is None and not groups.can_merge([sequence, node]):
            reason = "one of its operands depends on the sequence by another path"
        if reason is not None:
            context.notes[sequence.name] = f"not computed by {node.name}: {reason}"
            continue
        if not context.allow(f"{node.name} computes {sequence.name}"):
            break
        groups.merge([sequence, node])
        found.append(([sequence, node], _region))
    return contract(graph, found)


def _region(body: Graph) -> FusedGradient:
    return FusedGradient(flat(body))


def _gradient(node: Node) -> Node | None:
    """The gradient of a convolution for its image that a node is, or that its region has."""
    if isinstance(node.op, FusedGradient):
        return node.op.gradient
    return node if isinstance(node.op, Conv2dInputGradient) else None


def _made_in_front(graph: Graph, node: Node, gradient: Node) -> Node | None:
    """The sequence that makes what a node's gradient reads, if it can be computed with it."""
    read = gradient.inputs[0]
    if isinstance(node.op, FusedGradient):
        read = node.inputs[node.op.body.inputs.index(read)]
    sequence = read.producer
    if sequence is None or not isinstance(sequence.op, FusedSequence) or sequence.op.summed:
        return None
    body = sequence.op.body
    plain = all(isinstance(each.op, Elementwise) for each in body.nodes) and not body.constants
    others = [reader for reader in graph.readers[read] if reader is not node]
    alone = len(body.outputs) == 1 and read.type.rank == 4 and bool(others)
    return sequence if plain and alone else None


MAKE_IN_FRONT = Pass("make_in_front", make_in_front, requires=("depth_first", "sum_behind"))
