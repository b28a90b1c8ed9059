"""drop_samples: which samples are dropped is drawn for itself, and stacks multiply by it.

Stochastic depth leaves out a block for whole samples: it drops the one channel of a view (N, 1, M).
A kernel for it would read and write all elements beside the stacks before and after it, in the one
layout in which the view is none.

Handles: drops of channels of such views whose result is seen in the shape of before.  Ones are
dropped, one for each sample, and a formula takes the product of each element with its sample's, or
0.  The gradient's drop, which has the same numbers, takes the forward pass's.
Refuses: other drops; targets that say so; everything under strategies that leave layers apart.
"""

from __future__ import annotations

import numpy as np

from minidnn.fusion.collapse import APART
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
    if context.strategy in APART or not context.target.drops_in_stacks:
        return graph
    rewriter = Rewriter(graph)
    #: By how they are drawn, the numbers of samples.
    drawn: dict[tuple[object, ...], Value] = {}
    ones: dict[TensorType, Constant] = {}
    gone: set[Node] = set()
    for node in graph.nodes:
        if node in gone:
            continue
        before = _dropped(graph, node)
        if before is None or not context.allow(f"{node.name} draws a number for each sample"):
            rewriter.keep(node)
            continue
        _, *numbers = (rewriter.value(value) for value in node.inputs)
        shape = (node.output.shape[0], *(1 for _ in before.shape[1:]))
        type = TensorType(shape, node.output.dtype)
        key = (node.op, type, *numbers)
        if key not in drawn:
            one = ones.setdefault(type, _ones(type))
            name = rewriter.fresh(f"{node.name}.samples")
            drawn[key] = rewriter.add(node.op, [one, *numbers], name, node.source).output
        kept = rewriter.add(_KEPT, [rewriter.value(before), drawn[key]], node.name, node.source)
        for reader in graph.readers[node.output]:
            rewriter.replace(reader.output, kept.output)
            gone.add(reader)
    return rewriter.finish()


def _dropped(graph: Graph, node: Node) -> Value | None:
    """What a node drops samples of; None if it drops something else."""
    if not isinstance(node.op, RandomDrop) or not node.op.channels:
        return None
    view = node.inputs[0].producer
    if view is None or not isinstance(view.op, View) or node.output in graph.results:
        return None
    before, (rows, channels, *_) = view.inputs[0], node.output.shape
    if before.type.rank != 4 or channels != 1 or rows not in (1, before.shape[0]):
        return None
    readers = graph.readers[node.output]
    back = all(isinstance(r.op, View) and r.output.shape == before.shape for r in readers)
    return before if readers and back else None


def _ones(type: TensorType) -> Constant:
    return Constant(type, "ones", lambda: np.ones(type.shape, numpy_dtype(type.dtype)))


DROP_SAMPLES = Pass("drop_samples", drop_samples)
