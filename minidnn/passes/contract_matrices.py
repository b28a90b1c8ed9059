"""contract_matrices: products of matrices become gradients of 1x1 convolutions.

Gradients of a linear layer are products of matrices.  Convolutions' gradients are the same sums,
and a device may have better kernels of them: those of tensor cores, and such that divide the sum
over many rows among blocks.
Handles: products of two matrices of floats, where the target asks for it.  ``transposed(g) @ x`` is
a convolution's gradient for its weight, and any other ``g @ w`` that for its input.
Refuses: products of batches of matrices, and of integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Operator
from minidnn.graph.types import FLOATS
from minidnn.passes.infrastructure import Context, Pass

_PLANE = (1, 1)


def contract_matrices(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if not context.target.contracts_matrices:
        return graph
    found: dict[Node, Node | None] = {}
    for node in graph.nodes:
        if _is_product(node) and context.allow(f"contract {node.name}"):
            found[node] = _transposed(node.inputs[0])
    turned = {node.inputs[0] for node, made in found.items() if made is not None}
    needed = {value for node in graph.nodes for value in _read(node, found)} | {*graph.outputs}
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in found:
            rewriter.replace(node.output, _contracted(rewriter, node, found[node]))
        elif node.outputs[0] in needed or node.outputs[0] not in turned:
            rewriter.keep(node)
    return rewriter.finish()


def _read(node: Node, found: Mapping[Node, Node | None]) -> Sequence[Value]:
    """What a node, or what comes in its place, reads of the graph."""
    made = found.get(node)
    return node.inputs if made is None else (*made.inputs, node.inputs[1])


def _is_product(node: Node) -> bool:
    return (
        isinstance(node.op, ops.MatMul)
        and all(value.type.rank == 2 and 0 not in value.shape for value in node.inputs)
        and node.output.dtype in FLOATS
    )


def _transposed(value: Value) -> Node | None:
    """The node that transposes a matrix, if it is such a matrix."""
    made = value.producer
    return made if made is not None and made.op == ops.Transpose((1, 0)) else None


def _contracted(rewriter: Rewriter, node: Node, turned: Node | None) -> Value:
    def add(op: Operator, *operands: Value) -> Value:
        name = rewriter.fresh(f"{node.name}.{op.name.lower()}")
        return rewriter.add(op, operands, name, node.source).output

    def plane(value: Value) -> Value:
        """A matrix as images of one pixel, or as filters of one tap."""
        return add(ops.View((*value.shape, *_PLANE)), rewriter.value(value))

    a, b = node.inputs
    if turned is None:
        result = add(ops.Conv2dInputGradient(ops.Conv2d(), _PLANE), plane(a), plane(b))
    else:
        (gradient,) = turned.inputs
        result = add(ops.Conv2dWeightGradient(ops.Conv2d(), _PLANE), plane(b), plane(gradient))
    return add(ops.View(node.output.shape), result)


CONTRACT_MATRICES = Pass("contract_matrices", contract_matrices)
