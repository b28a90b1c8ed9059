"""pool_last: an average pool that a narrowing 1x1 convolution alone reads is computed after it.

Both are linear, the one over channels and the other over positions, so that they commute in
exact arithmetic; in floating point, sums are rounded in another order.  The average then reads and
writes fewer channels: Inception's pooled branches average 192 channels instead of 768.  The bias
is added behind the average, which need not count padding.
Handles: an AvgPool2d that makes nothing smaller, whose only reader is a Conv2d of 1x1 with stride
1, without padding, and with fewer channels of its result than of its input.
Refuses: other convolutions (what they read of the padding, or of a border, is no average), pools
with several readers, and averages of nothing, which are NaN.
"""

from __future__ import annotations

import numpy as np

from minidnn.graph.ir import Constant, Graph, Node, Rewriter
from minidnn.graph.operators import AvgPool2d, Conv2d, ScaleShift
from minidnn.graph.types import numpy_dtype
from minidnn.passes.infrastructure import Context, Pass


def pool_last(graph: Graph, context: Context) -> Graph:
    """See the module."""
    rewriter = Rewriter(graph)
    waiting: dict[Node, Node] = {}  # convolutions, and the pools that are computed after them
    for node in graph.nodes:
        reader = graph.only_reader(node.output) if isinstance(node.op, AvgPool2d) else None
        if (
            reader is not None
            and _commute(node, reader)
            and context.allow(f"compute {node.name} after {reader.name}")
        ):
            waiting[reader] = node
        elif node in waiting:
            _swap(rewriter, waiting[node], node)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _commute(pool: Node, convolution: Node) -> bool:
    op = convolution.op
    if not isinstance(op, Conv2d) or not isinstance(pool.op, AvgPool2d):
        return False
    kernel = convolution.inputs[1].shape[2:]
    pointwise = kernel == op.stride == (1, 1) and op.padding == ((0, 0), (0, 0))
    read, pooled, written = pool.inputs[0].type, pool.output.type, convolution.output.type
    constant = all(isinstance(value, Constant) for value in convolution.inputs[1:])
    narrower = written.shape[1] < pooled.shape[1] and pooled.size >= read.size
    return pointwise and constant and narrower and not pool.op.ceil_mode


def _swap(rewriter: Rewriter, pool: Node, convolution: Node) -> None:
    source = rewriter.value(pool.inputs[0])
    weight, *bias = (rewriter.value(value) for value in convolution.inputs[1:])
    new = rewriter.add(convolution.op, [source, weight], convolution.name, convolution.source)
    result = rewriter.add(pool.op, [new.output], pool.name, pool.source)
    if bias:
        dtype = numpy_dtype(bias[0].dtype)
        ones = Constant(bias[0].type, f"{pool.name}.one", np.ones(bias[0].shape, dtype))
        inputs = [result.output, ones, bias[0]]
        name = f"{convolution.name}.bias"
        result = rewriter.add(ScaleShift(), inputs, name, convolution.source)
    rewriter.replace(convolution.output, result.output)


POOL_LAST = Pass("pool_last", pool_last, requires=("simplify", "fold_batch_norm"))
