"""What is made in front of a convolution's gradient, and added up behind a convolution."""

from __future__ import annotations

from minidnn.fusion.collapse import UNFUSED
from minidnn.fusion.region import FusedContraction, FusedGradient, FusedSequence, FusedSums
from minidnn.fusion.stacks import Groups
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Contraction, Elementwise
from minidnn.graph.operators import Conv2dInputGradient, Reduce, Variance
from minidnn.passes.contract import MakeRegion, contract, flat
from minidnn.passes.infrastructure import Context, Pass


def make_in_front(graph: Graph, context: Context) -> Graph:
    """What a gradient of a convolution reads is made by the kernel of that gradient.

    Behind batch normalization the gradient of a convolution's result is computed point by point of
    another gradient and the result itself.  Both gradients of the convolution read it.  A kernel of
    the one for the image that computes it, and stores it for the other, saves reading it again.
    Which kernel computes the gradient stays open; one that computes nothing in front follows the
    sequence's.

    Handles: gradients for images, with sums behind them or without, and sequences of point-wise
    nodes whose only result they read and others, too.
    Refuses: whatever the target refuses (noted with its reason); everything under strategies that
    leave layers apart.
    """
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


def sum_behind(graph: Graph, context: Context) -> Graph:
    """What is added up of a contraction's result is computed with the contraction.

    In training these are mean and variance, which batch normalization needs, and, backwards, what
    is added up of gradients: a kernel that adds up what it writes saves a sweep that would read it
    again. Which kernel computes the contraction stays open; one that adds up nothing is followed by
    the sweep.

    Handles: sweeps for the mean and the variance of a contraction's result, of which other nodes
    read all three; sweeps of sums that read a gradient of a convolution for its image, which then
    is stored only if others read it, too.
    Refuses: whatever the target refuses (noted with its reason); everything under strategies that
    leave layers apart.
    """
    if context.strategy in UNFUSED:
        return graph
    groups = Groups(graph)
    found: list[tuple[list[Node], MakeRegion]] = []
    for node in graph.nodes:
        if not isinstance(node.op, FusedSums) or len(groups.nodes_of(node)) > 1:
            continue
        for made in _made_by(graph, node, node.op):
            reason = _refusal(groups, made, node, context)
            if reason is not None:
                context.notes[node.name] = f"not computed by {made.name}: {reason}"
                continue
            if not context.allow(f"{made.name} adds up {node.name}"):
                return contract(graph, found)
            groups.merge([made, node])
            back = isinstance(made.op, Conv2dInputGradient)
            found.append(([made, node], _summed_gradient if back else _contraction))
            break
    return contract(graph, found)


def _contraction(body: Graph) -> FusedContraction:
    return FusedContraction(flat(body))


def _summed_gradient(body: Graph) -> FusedGradient:
    return FusedGradient(flat(body))


def _refusal(groups: Groups, made: Node, node: Node, context: Context) -> str | None:
    """Why a contraction does not compute a sweep; None if it does."""
    target = context.target
    back = isinstance(made.op, Conv2dInputGradient)
    asked = target.refuse_summed_gradient(made) if back else target.refuse_statistics(made)
    if asked is not None:
        return asked
    if len(groups.nodes_of(made)) > 1:
        return "it computes another one"
    if not groups.can_merge([made, node]):
        return "one of the sweep's operands depends on it by another path"
    return None


def _made_by(graph: Graph, node: Node, op: FusedSums) -> list[Node]:
    """What makes an operand of a sweep and may compute the sweep, too."""
    makers = [value.producer for value in node.inputs if value.producer is not None]
    if _is_moments(op):
        read = any(reader is not node for reader in graph.readers[node.inputs[0]])
        wanted = (
            read or node.inputs[0] in graph.results,
            *(_is_read(graph, v) for v in node.outputs),
        )
        kinds = (Contraction, FusedContraction)
        return [made for made in makers if isinstance(made.op, kinds) and all(wanted)]
    plain = all(isinstance(each.op, Reduce) for each in op.reductions.values())
    if op.by_plane or op.plane_numbers:
        return []
    if not plain or op.body.constants or len(op.shape) != 4:
        return []
    if not all(_is_read(graph, value) for value in node.outputs):
        return []
    return [
        made
        for made in makers
        if isinstance(made.op, Conv2dInputGradient) and made.output.shape == op.shape
    ]


def _is_moments(op: FusedSums) -> bool:
    """Whether a sweep's results are a mean and the variance around it, as float32."""
    kinds = [type(node.op) for node in op.body.nodes]
    if kinds != [Reduce, Variance] or len(op.body.inputs) != 1:
        return False
    mean, variance = op.body.nodes
    assert isinstance(mean.op, Reduce)
    results = [mean.output, variance.output]
    return (
        mean.op.how == "mean"
        and list(variance.inputs) == [op.body.inputs[0], mean.output]
        and list(op.body.outputs) == results
        and all(value.dtype == "float32" for value in results)
    )


def _is_read(graph: Graph, value: Value) -> bool:
    return bool(graph.readers[value]) or value in graph.results


SUM_BEHIND = Pass("sum_behind", sum_behind, requires=("absorb", "sum_together"))
