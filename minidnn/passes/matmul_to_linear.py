"""matmul_to_linear: products of matrices in bfloat16 become linear layers.

The two gradients of a linear layer are products of matrices.  A CPU's bfloat16 dot products are in
its kernels of linear layers, which pack their weight in every run.
Handles: products with one matrix on the right, in bfloat16, where the target prefers linear layers.
The matrix becomes a weight by a transpose, or by leaving one out.
Refuses: products of batches of matrices, other dtypes, and few rows, for which moving the matrix
takes longer than the product.
"""

from __future__ import annotations

from math import prod

from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Rewriter, Value, drop_unread
from minidnn.passes.infrastructure import Context, Pass

LEAST_ROWS = 16
_TRANSPOSE = ops.Transpose((1, 0))


def matmul_to_linear(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if not context.target.prefers_linear:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if _is_product(node) and context.allow(f"compute {node.name} as a linear layer"):
            x, matrix = map(rewriter.value, node.inputs)
            weight = _weight(rewriter, node, matrix)
            linear = rewriter.add(ops.Linear(), (x, weight), node.name, node.source)
            rewriter.replace(node.output, linear.output)
        else:
            rewriter.keep(node)
    made = rewriter.finish()
    return made if made is graph else drop_unread(made)  # of transposes that were left out


def _is_product(node: Node) -> bool:
    if not isinstance(node.op, ops.MatMul):
        return False
    x, matrix = node.inputs
    halves = all(value.dtype == "bfloat16" for value in (*node.inputs, *node.outputs))
    is_one = matrix.type.rank == 2 <= x.type.rank and 0 not in (*x.shape, *matrix.shape)
    return halves and is_one and prod(x.shape[:-1]) >= LEAST_ROWS


def _weight(rewriter: Rewriter, node: Node, matrix: Value) -> Value:
    made = matrix.producer
    if made is not None and made.op == _TRANSPOSE:
        return made.inputs[0]
    name = rewriter.fresh(f"{node.name}.weight")
    return rewriter.add(_TRANSPOSE, (matrix,), name, node.source).output


MATMUL_TO_LINEAR = Pass("matmul_to_linear", matmul_to_linear, requires=("mix_precision",))
