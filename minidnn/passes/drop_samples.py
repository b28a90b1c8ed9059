"""drop_samples: stochastic depth draws one factor for each sample, and stacks multiply by it.

Stochastic depth drops a block for whole samples: it drops the only channel of a view (N, 1, M).  A
kernel of its own would read and write all elements between the stacks before and after it, in the
one layout in which the view copies nothing.

Handles: drops of channels of such views whose result is viewed in the shape of the view's operand.
The drop is applied to a vector of ones, one for each sample, and a formula that can be fused
multiplies each element by the factor of its sample, or gives 0.  The gradient's drop, which draws
the same numbers, uses the vector of the forward pass.
Refuses: other drops; targets that say so; everything under strategies that fuse no stacks.
"""

from __future__ import annotations

import numpy as np

from minidnn.fusion.collapse import NO_STACKS
from minidnn.graph.expression import argument, where
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operators import Formula, RandomDrop, View
from minidnn.graph.types import TensorType, numpy_dtype
from minidnn.passes.infrastructure import Context, Pass

_KEPT = Formula(
    where(argument(1) > 0.0, argument(0) * argument(1), 0.0), tensors=2, title="DropSamples"
)


def drop_samples(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in NO_STACKS or not context.target.drops_in_stacks:
        return graph
    rewriter = Rewriter(graph)
    #: Factors of samples, by the operator, the type and the operands of the generator.
    drawn: dict[tuple[object, ...], Value] = {}
    ones: dict[TensorType, Constant] = {}
    replaced: set[Node] = set()
    for node in graph.nodes:
        if node in replaced:
            continue
        source = _dropped(graph, node)
        if source is None or not context.allow(f"{node.name} draws a number for each sample"):
            rewriter.keep(node)
            continue
        _, *numbers = (rewriter.value(value) for value in node.inputs)
        shape = (node.output.shape[0], *(1 for _ in source.shape[1:]))
        type = TensorType(shape, node.output.dtype)
        key = (node.op, type, *numbers)
        if key not in drawn:
            ones_value = ones.setdefault(type, _ones(type))
            name = rewriter.fresh(f"{node.name}.samples")
            drawn[key] = rewriter.add(node.op, [ones_value, *numbers], name, node.source).output
        product = rewriter.add(_KEPT, [rewriter.value(source), drawn[key]], node.name, node.source)
        for reader in graph.readers[node.output]:
            rewriter.replace(reader.output, product.output)
            replaced.add(reader)
    return rewriter.finish()


def _dropped(graph: Graph, node: Node) -> Value | None:
    """The value whose samples a node drops, before it is viewed; None if it drops something
    else."""
    if not isinstance(node.op, RandomDrop) or not node.op.channels:
        return None
    view = node.inputs[0].producer
    if view is None or not isinstance(view.op, View) or node.output in graph.results:
        return None
    source, (rows, channels, *_) = view.inputs[0], node.output.shape
    if source.type.rank != 4 or channels != 1 or rows not in (1, source.shape[0]):
        return None
    readers = graph.readers[node.output]
    viewed_back = all(isinstance(r.op, View) and r.output.shape == source.shape for r in readers)
    return source if readers and viewed_back else None


def _ones(type: TensorType) -> Constant:
    return Constant(type, "ones", lambda: np.ones(type.shape, numpy_dtype(type.dtype)))


DROP_SAMPLES = Pass("drop_samples", drop_samples)
