"""Rewrites of average pools: they move across 1x1 convolutions, or become means of planes."""

from __future__ import annotations

import numpy as np

from minidnn.fusion.collapse import NO_STACKS
from minidnn.graph.ir import Constant, Graph, Node, Rewriter
from minidnn.graph.operators import AdaptiveAvgPool2d, AvgPool2d, Conv2d, Reduce, ScaleShift
from minidnn.graph.types import HALF_DTYPES, numpy_dtype
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.sum_together import is_pointwise


def sink_pooling(graph: Graph, context: Context) -> Graph:
    """An average pool whose only reader is a 1x1 convolution with fewer outputs sinks below it.

    Both are linear, the one over channels and the other over positions, so that they commute in
    exact arithmetic; in floating point, sums are rounded in another order.  The average then reads
    and writes fewer channels: Inception's pooled branches average 192 channels instead of 768.  The
    bias is added after the average, whether that counts padding or not.
    Handles: an AvgPool2d that does not reduce the spatial size, whose only reader is a 1x1 Conv2d
    with stride 1, without padding, and with fewer output than input channels.
    Refuses: other convolutions (the padding or the border that they read is no average), pools with
    several readers, and averages over no elements, which are NaN.
    """
    rewriter = Rewriter(graph)
    sunk: dict[Node, Node] = {}  # convolutions, and the pools that are computed after them
    for node in graph.nodes:
        reader = graph.only_reader(node.output) if isinstance(node.op, AvgPool2d) else None
        if (
            reader is not None
            and _can_sink(node, reader)
            and context.allow(f"compute {node.name} after {reader.name}")
        ):
            sunk[reader] = node
        elif node in sunk:
            _sink(rewriter, sunk[node], node)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _can_sink(pool: Node, convolution: Node) -> bool:
    """Whether a pool can be computed after the convolution that reads it."""
    op = convolution.op
    if not isinstance(op, Conv2d) or not isinstance(pool.op, AvgPool2d):
        return False
    kernel = convolution.inputs[1].shape[2:]
    pointwise = kernel == op.stride == (1, 1) and op.padding == ((0, 0), (0, 0))
    read, pooled, written = pool.inputs[0].type, pool.output.type, convolution.output.type
    constant = all(isinstance(value, Constant) for value in convolution.inputs[1:])
    narrower = written.shape[1] < pooled.shape[1] and pooled.size >= read.size
    return pointwise and constant and narrower and not pool.op.ceil_mode


def _sink(rewriter: Rewriter, pool: Node, convolution: Node) -> None:
    """Adds a convolution without bias, then its pool, then the bias."""
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


SINK_POOLING = Pass("sink_pooling", sink_pooling, requires=("simplify", "fold_batch_norm"))


def global_pools_to_means(graph: Graph, context: Context) -> Graph:
    """Average pools over whole planes become means, where the target reduces planes in sweeps.

    A sweep computes the operand of the mean itself, so that it need not be stored for that: the
    averages of squeeze-and-excitation are over activations, which follow from stored values.
    Handles: average pools in half precision over whole planes whose operand is the result of a
    point-wise operator and has other readers.  The mean is summed in the order of the sweep, and
    rounded once, as the pool's result is.
    Refuses: averages of values that are stored anyway, windows other than whole planes, and
    float32, where an average keeps the order of summation of a window; averages that one sequence
    computes with their operand; everything under strategies that fuse no stacks.
    """
    if context.strategy in NO_STACKS or not context.target.fuses_spatial_sums:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if (
            _is_plane_average(node)
            and _has_other_readers(graph, node)
            and context.allow(f"{node.name} is a mean")
        ):
            mean = Reduce("mean", (2, 3), keepdim=True)
            operands = [rewriter.value(node.inputs[0])]
            result = rewriter.add(mean, operands, node.name, node.source)
            rewriter.replace(node.output, result.output)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _is_plane_average(node: Node) -> bool:
    """Whether a node is an average pool in half precision over whole planes of a point-wise node's
    result."""
    op = node.op
    if not isinstance(op, (AvgPool2d, AdaptiveAvgPool2d)):
        return False
    x = node.inputs[0]
    if x.dtype not in HALF_DTYPES or x.producer is None or not is_pointwise(x.producer, True):
        return False
    plane = x.shape[2:]
    if node.output.shape[2:] != (1, 1) or plane == (1, 1):
        return False
    if isinstance(op, AdaptiveAvgPool2d):
        return True
    counted = op.divisor_override in (None, plane[0] * plane[1])
    return op.kernel_size == plane and op.padding == (0, 0) and counted


def _has_other_readers(graph: Graph, node: Node) -> bool:
    """Whether the operand of an average has other readers, for which a sequence would have to store
    it."""
    x = node.inputs[0]
    return len(graph.readers[x]) > 1 or x in graph.results


GLOBAL_POOLS_TO_MEANS = Pass("global_pools_to_means", global_pools_to_means, requires=("simplify",))


def hoist_pooling(graph: Graph, context: Context) -> Graph:
    """An average pool after a 1x1 convolution is hoisted above it.

    Both are linear, the one over channels and the other over positions, so that they commute in
    exact arithmetic; in floating point, sums are rounded in another order.  The convolution then
    computes fewer pixels, and the average can be fused into the stack before it: DenseNet's
    transitions (normalization, ReLU, 1x1 convolution, average pool) become a sequence and a quarter
    of the convolution.
    Handles: a 1x1 Conv2d with stride 1 and without padding, whose only reader is an AvgPool2d that
    computes true averages (without counting padding, and without another divisor) and reduces the
    spatial size.
    Refuses: other convolutions (they pad, or skip pixels that the pool reads) and other pools.
    """
    rewriter = Rewriter(graph)
    swapped: set[Node] = set()  # pools that were moved before the convolution that they read
    for node in graph.nodes:
        pool = graph.only_reader(node.output) if isinstance(node.op, Conv2d) else None
        if (
            pool is not None
            and _can_hoist(node, pool)
            and context.allow(f"compute {pool.name} before {node.name}")
        ):
            swapped.add(pool)
            _swap(rewriter, node, pool)
        elif node not in swapped:
            rewriter.keep(node)
    return rewriter.finish()


def _can_hoist(convolution: Node, pool: Node) -> bool:
    """Whether a pool can be computed before the convolution that it reads."""
    op, kernel = convolution.op, convolution.inputs[1].shape[2:]
    if not isinstance(op, Conv2d) or not isinstance(pool.op, AvgPool2d):
        return False
    pointwise = kernel == op.stride == (1, 1) and op.padding == ((0, 0), (0, 0))
    is_true_average = pool.op.divisor_override is None and (
        not pool.op.count_include_pad or pool.op.padding == (0, 0)
    )
    operands = convolution.inputs
    is_smaller = pool.output.type.size < convolution.output.type.size
    return pointwise and is_true_average and is_smaller and operands.count(operands[0]) == 1


def _swap(rewriter: Rewriter, convolution: Node, pool: Node) -> None:
    source, *constants = (rewriter.value(value) for value in convolution.inputs)
    pooled = rewriter.add(pool.op, [source], pool.name, pool.source)
    inputs = [pooled.output, *constants]
    new = rewriter.add(convolution.op, inputs, convolution.name, convolution.source)
    rewriter.replace(pool.output, new.output)


HOIST_POOLING = Pass("hoist_pooling", hoist_pooling, requires=("simplify", "fold_batch_norm"))
