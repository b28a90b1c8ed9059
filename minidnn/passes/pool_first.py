"""pool_first: an average pool that reads a 1x1 convolution is computed before it.

Both are linear, the one over channels and the other over positions, so that they commute in
exact arithmetic; in floating point, sums are rounded in another order.  The convolution then
computes fewer pixels, and the average can join the stack before it: DenseNet's transitions
(normalization, ReLU, 1x1 convolution, average pool) become a sequence and a quarter of the
convolution.
Handles: a Conv2d of 1x1 with stride 1 and without padding, whose only reader is an AvgPool2d that
averages what it reads (no zeros of the padding counted in, no other divisor) and makes it smaller.
Refuses: other convolutions (they pad, or skip pixels that the pool reads) and other pools.
"""

from __future__ import annotations

from minidnn.graph.ir import Graph, Node, Rewriter
from minidnn.graph.operators import AvgPool2d, Conv2d
from minidnn.passes.infrastructure import Context, Pass


def pool_first(graph: Graph, context: Context) -> Graph:
    """See the module."""
    rewriter = Rewriter(graph)
    swapped: set[Node] = set()  # pools that were computed before the convolution that they read
    for node in graph.nodes:
        pool = graph.only_reader(node.output) if isinstance(node.op, Conv2d) else None
        if (
            pool is not None
            and _commute(node, pool)
            and context.allow(f"compute {pool.name} before {node.name}")
        ):
            swapped.add(pool)
            _swap(rewriter, node, pool)
        elif node not in swapped:
            rewriter.keep(node)
    return rewriter.finish()


def _commute(convolution: Node, pool: Node) -> bool:
    op, kernel = convolution.op, convolution.inputs[1].shape[2:]
    if not isinstance(op, Conv2d) or not isinstance(pool.op, AvgPool2d):
        return False
    pointwise = kernel == op.stride == (1, 1) and op.padding == ((0, 0), (0, 0))
    average = pool.op.divisor_override is None and (
        not pool.op.count_include_pad or pool.op.padding == (0, 0)
    )
    reads = convolution.inputs
    smaller = pool.output.type.size < convolution.output.type.size
    return pointwise and average and smaller and reads.count(reads[0]) == 1


def _swap(rewriter: Rewriter, convolution: Node, pool: Node) -> None:
    source, *constants = (rewriter.value(value) for value in convolution.inputs)
    pooled = rewriter.add(pool.op, [source], pool.name, pool.source)
    inputs = [pooled.output, *constants]
    new = rewriter.add(convolution.op, inputs, convolution.name, convolution.source)
    rewriter.replace(pool.output, new.output)


POOL_FIRST = Pass("pool_first", pool_first, requires=("simplify", "fold_batch_norm"))
