"""Average pools move across the convolutions beside them, and averages of whole planes to means."""

from __future__ import annotations

import numpy as np

from minidnn.fusion.collapse import APART
from minidnn.graph.ir import Constant, Graph, Node, Rewriter
from minidnn.graph.operators import AdaptiveAvgPool2d, AvgPool2d, Conv2d, Reduce, ScaleShift
from minidnn.graph.types import HALVES, numpy_dtype
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.sum_together import is_pointwise


def pool_last(graph: Graph, context: Context) -> Graph:
    """An average pool that a narrowing 1x1 convolution alone reads is computed after it.

    Both are linear, the one over channels and the other over positions, so that they commute in
    exact arithmetic; in floating point, sums are rounded in another order.  The average then reads
    and writes fewer channels: Inception's pooled branches average 192 channels instead of 768.  The
    bias is added behind the average, which need not count padding.
    Handles: an AvgPool2d that makes nothing smaller, whose only reader is a Conv2d of 1x1 with
    stride 1, without padding, and with fewer channels of its result than of its input.
    Refuses: other convolutions (what they read of the padding, or of a border, is no average),
    pools with several readers, and averages of nothing, which are NaN.
    """
    rewriter = Rewriter(graph)
    waiting: dict[Node, Node] = {}  # convolutions, and the pools that are computed after them
    for node in graph.nodes:
        reader = graph.only_reader(node.output) if isinstance(node.op, AvgPool2d) else None
        if (
            reader is not None
            and _commutes_behind(node, reader)
            and context.allow(f"compute {node.name} after {reader.name}")
        ):
            waiting[reader] = node
        elif node in waiting:
            _swapped_back(rewriter, waiting[node], node)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _commutes_behind(pool: Node, convolution: Node) -> bool:
    op = convolution.op
    if not isinstance(op, Conv2d) or not isinstance(pool.op, AvgPool2d):
        return False
    kernel = convolution.inputs[1].shape[2:]
    pointwise = kernel == op.stride == (1, 1) and op.padding == ((0, 0), (0, 0))
    read, pooled, written = pool.inputs[0].type, pool.output.type, convolution.output.type
    constant = all(isinstance(value, Constant) for value in convolution.inputs[1:])
    narrower = written.shape[1] < pooled.shape[1] and pooled.size >= read.size
    return pointwise and constant and narrower and not pool.op.ceil_mode


def _swapped_back(rewriter: Rewriter, pool: Node, convolution: Node) -> None:
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


def average_planes(graph: Graph, context: Context) -> Graph:
    """Averages of whole planes become means where the target adds planes up in sweeps.

    A sweep computes what is averaged, so that it need not be stored for that: squeezed channels are
    averages of activations, and these read stored values alone.
    Handles: average pools in half precision over whole planes of what point-wise operators make, if
    others read that, too.  The mean is added up in the order of the sweep, and rounded once, as the
    pool is.
    Refuses: averages of what is stored anyway, of more or less than planes, and float32, where an
    average keeps the order of a window; those that one sequence computes with what it reads;
    everything under strategies that leave layers apart.
    """
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


def pool_first(graph: Graph, context: Context) -> Graph:
    """An average pool that reads a 1x1 convolution is computed before it.

    Both are linear, the one over channels and the other over positions, so that they commute in
    exact arithmetic; in floating point, sums are rounded in another order.  The convolution then
    computes fewer pixels, and the average can join the stack before it: DenseNet's transitions
    (normalization, ReLU, 1x1 convolution, average pool) become a sequence and a quarter of the
    convolution.
    Handles: a Conv2d of 1x1 with stride 1 and without padding, whose only reader is an AvgPool2d
    that averages what it reads (no zeros of the padding counted in, no other divisor) and makes it
    smaller.
    Refuses: other convolutions (they pad, or skip pixels that the pool reads) and other pools.
    """
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
