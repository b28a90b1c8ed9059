"""Rewrites of matrix products and linear layers to the operators that a device computes fastest.

``matmul_to_linear`` makes linear layers of products, ``contract_matrices`` makes gradients of 1x1
convolutions of them, ``linear_to_conv`` makes 1x1 convolutions of linear layers over channels, and
``transpose_linear`` moves transposes of rows across linear layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from minidnn.fusion.collapse import NO_STACKS
from minidnn.fusion.strided import is_view
from minidnn.graph import operators as ops
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value, drop_unread
from minidnn.graph.operator import Elementwise, Operator, Reshaping
from minidnn.graph.operators import Conv2d, Linear, Transpose, View
from minidnn.graph.types import FLOATS, TensorType
from minidnn.passes.infrastructure import Context, Pass

LEAST_ROWS = 16
"""Rows of a product that ``matmul_to_linear`` rewrites: with fewer, moving the matrix takes longer
than the product."""
_TRANSPOSE = ops.Transpose((1, 0))


def matmul_to_linear(graph: Graph, context: Context) -> Graph:
    """Matrix products in bfloat16 become linear layers.

    The two gradients of a linear layer are matrix products.  On a CPU, the kernels of linear layers
    use bfloat16 dot product instructions, and pack a weight that is no constant in every run.
    Handles: products with one matrix on the right, in bfloat16, where the target prefers linear
    layers.  The weight is the transposed matrix, or the operand of a transpose.
    Refuses: products of batches of matrices, other dtypes, and few rows, for which moving the
    matrix takes longer than the product.
    """
    if not context.target.prefers_linear:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if _is_linear_product(node) and context.allow(f"compute {node.name} as a linear layer"):
            x, matrix = map(rewriter.value, node.inputs)
            weight = _weight(rewriter, node, matrix)
            linear = rewriter.add(ops.Linear(), (x, weight), node.name, node.source)
            rewriter.replace(node.output, linear.output)
        else:
            rewriter.keep(node)
    rewritten = rewriter.finish()
    return (
        rewritten if rewritten is graph else drop_unread(rewritten)
    )  # of transposes that were left out


def _is_linear_product(node: Node) -> bool:
    if not isinstance(node.op, ops.MatMul):
        return False
    x, matrix = node.inputs
    is_bfloat16 = all(value.dtype == "bfloat16" for value in (*node.inputs, *node.outputs))
    is_one_matrix = matrix.type.rank == 2 <= x.type.rank and 0 not in (*x.shape, *matrix.shape)
    return is_bfloat16 and is_one_matrix and prod(x.shape[:-1]) >= LEAST_ROWS


def _weight(rewriter: Rewriter, node: Node, matrix: Value) -> Value:
    producer = matrix.producer
    if producer is not None and producer.op == _TRANSPOSE:
        return producer.inputs[0]
    name = rewriter.fresh(f"{node.name}.weight")
    return rewriter.add(_TRANSPOSE, (matrix,), name, node.source).output


MATMUL_TO_LINEAR = Pass("matmul_to_linear", matmul_to_linear, requires=("mix_precision",))


_PLANE = (1, 1)


def contract_matrices(graph: Graph, context: Context) -> Graph:
    """Matrix products become gradients of 1x1 convolutions.

    Gradients of a linear layer are matrix products.  Gradients of 1x1 convolutions are the same
    sums, and a device may have faster kernels for them: on tensor cores, and with split-K over many
    rows.
    Handles: products of two matrices of floats, where the target asks for it.  ``transposed(g) @
    x`` is the weight gradient of a convolution, and any other ``g @ w`` an input gradient.
    Refuses: products of batches of matrices, and of integers.
    """
    if not context.target.contracts_matrices:
        return graph
    transposes: dict[Node, Node | None] = {}
    for node in graph.nodes:
        if _is_matrix_product(node) and context.allow(f"contract {node.name}"):
            transposes[node] = _transposed(node.inputs[0])
    transposed = {node.inputs[0] for node, transpose in transposes.items() if transpose is not None}
    needed = {value for node in graph.nodes for value in _read_by(node, transposes)} | {
        *graph.outputs
    }
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in transposes:
            rewriter.replace(node.output, _contracted(rewriter, node, transposes[node]))
        elif node.outputs[0] in needed or node.outputs[0] not in transposed:
            rewriter.keep(node)
    return rewriter.finish()


def _read_by(node: Node, found: Mapping[Node, Node | None]) -> Sequence[Value]:
    """The values of the graph that a node reads, or that the gradient in its place reads."""
    transpose = found.get(node)
    return node.inputs if transpose is None else (*transpose.inputs, node.inputs[1])


def _is_matrix_product(node: Node) -> bool:
    return (
        isinstance(node.op, ops.MatMul)
        and all(value.type.rank == 2 and 0 not in value.shape for value in node.inputs)
        and node.output.dtype in FLOATS
    )


def _transposed(value: Value) -> Node | None:
    """The Transpose that makes a matrix; None if something else makes it."""
    producer = value.producer
    return producer if producer is not None and producer.op == _TRANSPOSE else None


def _contracted(rewriter: Rewriter, node: Node, transpose: Node | None) -> Value:
    """Adds the gradient of a 1x1 convolution for a matrix product; ``transpose`` is that of
    its first operand, if there is one."""

    def add(op: Operator, *operands: Value) -> Value:
        name = rewriter.fresh(f"{node.name}.{op.name.lower()}")
        return rewriter.add(op, operands, name, node.source).output

    def plane(value: Value) -> Value:
        """A matrix viewed as images of one pixel, or as filters of one tap."""
        return add(ops.View((*value.shape, *_PLANE)), rewriter.value(value))

    a, b = node.inputs
    if transpose is None:
        result = add(ops.Conv2dInputGradient(ops.Conv2d(), _PLANE), plane(a), plane(b))
    else:
        (gradient,) = transpose.inputs
        result = add(ops.Conv2dWeightGradient(ops.Conv2d(), _PLANE), plane(b), plane(gradient))
    return add(ops.View(node.output.shape), result)


CONTRACT_MATRICES = Pass("contract_matrices", contract_matrices)


FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations of a Transpose from NHWC to NCHW, and from NCHW to NHWC."""


def linear_to_conv(graph: Graph, context: Context) -> Graph:
    """Linear layers over channels between transposes become 1x1 convolutions.

    Networks with layer normalization transpose images to channels last, for the normalization and
    linear layers, and back.  A linear layer there is a 1x1 convolution of the original value, which
    takes a residual sum or a scale of each channel after it as its epilogue.
    Handles: a Transpose from (N, H, W, C) to (N, C, H, W) after linear layers and point-wise
    operators of one operand, of which each is the only reader of the one before.  The Transpose
    moves before them, where it cancels a Transpose to (N, H, W, C).
    Refuses: weights that are not constant, operators that read a second tensor or a vector.
    """
    chains: dict[Node, list[Node]] = {}
    replaced: set[Node] = set()  # nodes of chains; the chain's last node adds the convolutions
    for node in graph.nodes:
        chain = _chain(graph, node)
        if chain and context.allow(f"{node.name} before {chain[0].name}"):
            chains[node] = chain
            replaced.update(chain)
            producer = chain[0].inputs[0].producer
            is_only_reader = graph.only_reader(chain[0].inputs[0]) is chain[0]
            if producer is not None and is_only_reader and _moves(producer, LAST):
                replaced.add(producer)
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in chains:
            rewriter.replace(node.output, _convolved(rewriter, chains[node]))
        elif node not in replaced:
            rewriter.keep(node)
    return rewriter.finish()


def _chain(graph: Graph, node: Node) -> list[Node]:
    """The nodes before a Transpose to NCHW that can be moved after it, from the first linear layer
    to the last node; none if there is no linear layer."""
    if not _moves(node, FIRST):
        return []
    chain: list[Node] = []
    value, reader = node.inputs[0], node
    while (producer := value.producer) is not None and graph.only_reader(value) is reader:
        has_constants = all(isinstance(operand, Constant) for operand in producer.inputs[1:])
        is_unary = isinstance(producer.op, Elementwise) and len(producer.inputs) == 1
        if not is_unary and not (isinstance(producer.op, Linear) and has_constants):
            break
        chain.insert(0, producer)
        value, reader = producer.inputs[0], producer
    linear = [i for i, producer in enumerate(chain) if isinstance(producer.op, Linear)]
    return chain[linear[0] :] if linear else []


def _moves(node: Node, dims: tuple[int, ...]) -> bool:
    return isinstance(node.op, Transpose) and node.op.dims == dims


def _convolved(rewriter: Rewriter, chain: list[Node]) -> Value:
    """Adds a chain with 1x1 convolutions in place of linear layers, on values in NCHW."""
    source = chain[0].inputs[0]
    producer = source.producer
    if producer is not None and _moves(producer, LAST):
        value = rewriter.value(producer.inputs[0])
    else:
        name = rewriter.fresh(f"{chain[0].name}.input")
        transpose = Transpose(FIRST)
        value = rewriter.add(transpose, [rewriter.value(source)], name, chain[0].source).output
    for node in chain:
        operands = list(node.inputs[1:])
        op = node.op
        if isinstance(op, Linear):
            op, operands[0] = Conv2d(), _filter(node, operands[0])
        value = rewriter.add(op, [value, *operands], node.name, node.source).output
    return value


def _filter(node: Node, weight: Value) -> Constant:
    """The weight of a linear layer as the filter of a 1x1 convolution.  It is not named after the
    weight, which several layers may share."""
    assert isinstance(weight, Constant)
    type = TensorType((*weight.shape, 1, 1), weight.dtype)
    return Constant(type, f"{node.name}.filter", partial(_reshaped, weight, type.shape))


def _reshaped(weight: Constant, shape: tuple[int, ...]) -> np.ndarray:
    return weight.data.reshape(shape)


LINEAR_TO_CONV = Pass("linear_to_conv", linear_to_conv, requires=("simplify",))


def transpose_linear(graph: Graph, context: Context) -> Graph:
    """Transposes of rows move across linear layers, next to attention, which can absorb them.

    A linear layer computes each row independently.  Where batch and tokens are transposed before
    the projections of attention, and back after the last one, both transposes can move to the
    attention between them, which reads and writes strided matrices.
    Handles: a Transpose of rows before a linear layer whose result has only views as readers: it
    moves after the layer.  A Transpose after a linear layer whose operand is a view moves before
    the layer.
    Refuses: a Transpose that moves features; everything under strategies that fuse no stacks, and
    where products do not read strided matrices.
    """
    if context.strategy in NO_STACKS or not context.target.transposes_products:
        return graph
    return transpose_linear_rows(graph, context)


def transpose_linear_rows(graph: Graph, context: Context) -> Graph:
    """The rewrites of ``transpose_linear``, whatever the target and the strategy are."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        transpose, chain = _transpose_before(graph, node), _linear_chain_before(graph, node)
        if transpose is not None and context.allow(f"{transpose.name} behind {node.name}"):
            _move_after(rewriter, node, transpose)
        elif chain is not None and context.allow(f"{node.name} before {chain[-1].name}"):
            _move_before(rewriter, node, chain)
        else:
            rewriter.keep(node)
    return drop_unread(rewriter.finish()) if rewriter.changes else graph


def _turns_rows(node: Node | None) -> bool:
    """Whether a node is a Transpose that keeps the last axis, the features."""
    op = None if node is None else node.op
    return isinstance(op, Transpose) and op.dims[-1] == len(op.dims) - 1


def _transpose_before(graph: Graph, node: Node) -> Node | None:
    """The Transpose before a linear layer that may be moved after it; None if there is none."""
    move = node.inputs[0].producer if isinstance(node.op, Linear) else None
    if move is None or not _turns_rows(move) or node.output in graph.results:
        return None
    return move if all(map(is_view, graph.readers[node.output])) else None


def _linear_chain_before(graph: Graph, node: Node) -> list[Node] | None:
    """The linear layer before a Transpose and the reshapes between them, if the Transpose may be
    moved before the layer; None if it may not."""
    if not _turns_rows(node):
        return None
    chain: list[Node] = []
    value, reader = node.inputs[0], node
    while (producer := value.producer) is not None and graph.only_reader(value) is reader:
        chain.insert(0, producer)
        if isinstance(producer.op, Linear):
            source = producer.inputs[0].producer
            features = [each.output.shape[-1] for each in chain]
            return (
                chain if source is not None and is_view(source) and len({*features}) == 1 else None
            )
        if not isinstance(producer.op, Reshaping):
            return None
        value, reader = producer.inputs[0], producer
    return None


def _move_after(rewriter: Rewriter, node: Node, transpose: Node) -> None:
    """Adds a linear layer on the operand of a Transpose, and the Transpose after it."""
    operands = [transpose.inputs[0], *node.inputs[1:]]
    name = rewriter.fresh(f"{node.name}.rows")
    linear = rewriter.add(node.op, list(map(rewriter.value, operands)), name, node.source)
    transposed = rewriter.add(transpose.op, [linear.output], node.name, transpose.source)
    rewriter.replace(node.output, transposed.output)


def _move_before(rewriter: Rewriter, transpose: Node, chain: list[Node]) -> None:
    """Adds a Transpose on the operand of the linear layer of a chain, and the layer after it."""
    linear = chain[0]
    value = rewriter.value(linear.inputs[0])
    features = value.shape[-1]
    view: Operator = View((*transpose.inputs[0].shape[:-1], features))
    for op in (view, transpose.op):
        name = rewriter.fresh(f"{linear.name}.{op.name.lower()}")
        value = rewriter.add(op, [value], name, transpose.source).output
    operands = [value, *map(rewriter.value, linear.inputs[1:])]
    result = rewriter.add(linear.op, operands, transpose.name, linear.source)
    rewriter.replace(transpose.output, result.output)


TRANSPOSE_LINEAR = Pass("transpose_linear", transpose_linear)
