"""sum_behind: what is added up of a contraction's result is computed with the contraction.

In training these are mean and variance, which batch normalization needs, and, backwards, what is
added up of gradients: a kernel that adds up what it writes saves a sweep that would read it again.
Which kernel computes the contraction stays open; one that adds up nothing is followed by the sweep.

Handles: sweeps for the mean and the variance of a contraction's result, of which other nodes read
all three; sweeps of sums that read a gradient of a convolution for its image, which then is stored
only if others read it, too.
Refuses: whatever the target refuses (noted with its reason); everything under strategies that leave
layers apart.
"""

from __future__ import annotations

from minidnn.fusion.collapse import UNFUSED
from minidnn.fusion.region import FusedContraction, FusedGradient, FusedSums
from minidnn.fusion.stacks import Groups
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Contraction
from minidnn.graph.operators import Conv2dInputGradient, Reduce, Variance
from minidnn.passes.contract import MakeRegion, contract, flat
from minidnn.passes.infrastructure import Context, Pass


def sum_behind(graph: Graph, context: Context) -> Graph:
    """See the module."""
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
