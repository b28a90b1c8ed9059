"""average_planes: averages of whole planes become means where the target adds planes up in sweeps.

A sweep computes what is averaged, so that it need not be stored for that: squeezed channels are
averages of activations, and these read stored values alone.
Handles: average pools in half precision over whole planes of what point-wise operators make, if
others read that, too.  The mean is added up in the order of the sweep, and rounded once, as the
pool is.
Refuses: averages of what is stored anyway, of more or less than planes, and float32, where an
average keeps the order of a window; those that one sequence computes with what it reads; everything
under strategies that leave layers apart.
"""

from __future__ import annotations

from minidnn.fusion.collapse import APART
from minidnn.graph.ir import Graph, Node, Rewriter
from minidnn.graph.operators import AdaptiveAvgPool2d, AvgPool2d, Reduce
from minidnn.graph.types import HALVES
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.sum_together import is_pointwise


def average_planes(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART or not context.target.adds_planes:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if _is_average(node) and _gains(graph, node) and context.allow(f"{node.name} is a mean"):
            mean = Reduce("mean", (2, 3), keepdim=True)
            operands = [rewriter.value(node.inputs[0])]
            made = rewriter.add(mean, operands, node.name, node.source)
            rewriter.replace(node.output, made.output)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _is_average(node: Node) -> bool:
    """Whether a node averages whole planes of what point-wise operators make."""
    op = node.op
    if not isinstance(op, (AvgPool2d, AdaptiveAvgPool2d)):
        return False
    x = node.inputs[0]
    if x.dtype not in HALVES or x.producer is None or not is_pointwise(x.producer, True):
        return False
    plane = x.shape[2:]
    if node.output.shape[2:] != (1, 1) or plane == (1, 1):
        return False
    if isinstance(op, AdaptiveAvgPool2d):
        return True
    counted = op.divisor_override in (None, plane[0] * plane[1])
    return op.kernel_size == plane and op.padding == (0, 0) and counted


def _gains(graph: Graph, node: Node) -> bool:
    """Whether others read what is averaged, which one sequence would have to store for them."""
    x = node.inputs[0]
    return len(graph.readers[x]) > 1 or x in graph.results


AVERAGE_PLANES = Pass("average_planes", average_planes, requires=("simplify",))
