"""sum_behind: mean and variance of what a contraction makes are results of the contraction.

In training these are what batch normalization needs: a kernel that adds up what it writes saves a
sweep that would read it again.  Which kernel computes the contraction stays open; one that adds up
nothing is followed by the sweep.

Handles: sweeps for the mean and the variance of a contraction's result, of which other nodes read
all three.
Refuses: whatever the target refuses (noted with its reason); sweeps that compute anything else;
everything under strategies that leave layers apart.
"""

from __future__ import annotations

from minidnn.fusion.collapse import UNFUSED
from minidnn.fusion.region import FusedContraction, FusedSums
from minidnn.fusion.stacks import Groups
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Contraction
from minidnn.graph.operators import Reduce, Variance
from minidnn.passes.contract import contract, flat
from minidnn.passes.infrastructure import Context, Pass


def sum_behind(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in UNFUSED:
        return graph
    groups = Groups(graph)
    found = []
    for node in graph.nodes:
        contraction = _made_by(graph, node)
        if contraction is None or len(groups.nodes_of(contraction)) > 1:
            continue
        reason = context.target.refuse_statistics(contraction)
        if reason is None and not groups.can_merge([contraction, node]):
            reason = "what reads the contraction's result comes before them"
        if reason is not None:
            context.notes[node.name] = f"not computed by {contraction.name}: {reason}"
            continue
        if not context.allow(f"{contraction.name} adds up {node.name}"):
            break
        groups.merge([contraction, node])
        found.append(((contraction, node), lambda body: FusedContraction(flat(body))))
    return contract(graph, found)


def _made_by(graph: Graph, node: Node) -> Node | None:
    """The contraction whose result's mean and variance a sweep adds up."""
    if not isinstance(node.op, FusedSums) or len(node.inputs) != 1 or not _is_moments(node.op):
        return None
    contraction = node.inputs[0].producer
    if contraction is None or not isinstance(contraction.op, (Contraction, FusedContraction)):
        return None
    read = any(reader is not node for reader in graph.readers[node.inputs[0]])
    wanted = (read or node.inputs[0] in graph.results, *(_is_read(graph, v) for v in node.outputs))
    return contraction if all(wanted) else None


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
