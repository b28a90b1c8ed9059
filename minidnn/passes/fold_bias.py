"""fold_bias: what is added to the features of a linear layer becomes its bias.

Files write a linear layer as a product of matrices and a sum.  A bias is what sums begin with, so
that they are rounded otherwise.
Handles: an Add of a constant with one number for each feature, which alone reads a linear layer
without a bias.
Refuses: other constants, and whole numbers, whose bias has another dtype.
"""

from __future__ import annotations

from math import prod

from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operators import Add, Linear
from minidnn.graph.types import FLOATS, TensorType
from minidnn.passes.infrastructure import Context, Pass


def fold_bias(graph: Graph, context: Context) -> Graph:
    """See the module."""
    rewriter = Rewriter(graph)
    folded: set[Node] = set()  # sums that went into the layer before them
    for node in graph.nodes:
        reader = graph.only_reader(node.output) if isinstance(node.op, Linear) else None
        added = None if reader is None else _added(node, reader)
        if (
            reader is not None
            and added is not None
            and context.allow(f"{reader.name} is the bias of {node.name}")
        ):
            folded.add(reader)
            _fold(rewriter, node, reader, added)
        elif node not in folded:
            rewriter.keep(node)
    return rewriter.finish()


def _added(layer: Node, reader: Node) -> Constant | None:
    """What a sum adds to the features of a linear layer; None if it is no bias."""
    if len(layer.inputs) > 2 or not isinstance(reader.op, Add):
        return None
    others: list[Value] = [v for v in reader.inputs if v is not layer.output]
    if len(others) != 1 or not isinstance(other := others[0], Constant):
        return None
    features = layer.output.shape[-1:]
    one_each = other.shape[-1:] == features and prod(other.shape[:-1]) == 1
    same = reader.output.type == layer.output.type and other.dtype == layer.output.dtype
    return other if one_each and same and other.dtype in FLOATS else None


def _fold(rewriter: Rewriter, layer: Node, reader: Node, added: Constant) -> None:
    type = TensorType(added.shape[-1:], added.dtype)
    bias = Constant(type, f"{layer.name}.bias", lambda: added.data.reshape(type.shape))
    inputs = [*map(rewriter.value, layer.inputs), bias]
    new = rewriter.add(layer.op, inputs, layer.name, layer.source)
    rewriter.replace(reader.output, new.output)


FOLD_BIAS = Pass("fold_bias", fold_bias, requires=("simplify",))
