"""Products of matrices and linear layers in the form that a device computes best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from minidnn.fusion.collapse import APART
from minidnn.fusion.strided import is_view
from minidnn.graph import operators as ops
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value, drop_unread
from minidnn.graph.operator import Elementwise, Operator, Reshaping
from minidnn.graph.operators import Conv2d, Linear, Transpose, View
from minidnn.graph.types import FLOATS, TensorType
from minidnn.passes.infrastructure import Context, Pass

LEAST_ROWS = 16
_TRANSPOSE = ops.Transpose((1, 0))


def matmul_to_linear(graph: Graph, context: Context) -> Graph:
    """Products of matrices in bfloat16 become linear layers.

    The two gradients of a linear layer are products of matrices.  A CPU's bfloat16 dot products are
    in its kernels of linear layers, which pack their weight in every run.
    Handles: products with one matrix on the right, in bfloat16, where the target prefers linear
    layers.  The matrix becomes a weight by a transpose, or by leaving one out.
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
    made = rewriter.finish()
    return made if made is graph else drop_unread(made)  # of transposes that were left out


def _is_linear_product(node: Node) -> bool:
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


_PLANE = (1, 1)


def contract_matrices(graph: Graph, context: Context) -> Graph:
    """Products of matrices become gradients of 1x1 convolutions.

    Gradients of a linear layer are products of matrices.  Convolutions' gradients are the same
    sums, and a device may have better kernels of them: those of tensor cores, and such that divide
    the sum over many rows among blocks.
    Handles: products of two matrices of floats, where the target asks for it.  ``transposed(g) @
    x`` is a convolution's gradient for its weight, and any other ``g @ w`` that for its input.
    Refuses: products of batches of matrices, and of integers.
    """
    if not context.target.contracts_matrices:
        return graph
    found: dict[Node, Node | None] = {}
    for node in graph.nodes:
        if _is_matrix_product(node) and context.allow(f"contract {node.name}"):
            found[node] = _transposed(node.inputs[0])
    turned = {node.inputs[0] for node, made in found.items() if made is not None}
    needed = {value for node in graph.nodes for value in _read_by(node, found)} | {*graph.outputs}
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in found:
            rewriter.replace(node.output, _contracted(rewriter, node, found[node]))
        elif node.outputs[0] in needed or node.outputs[0] not in turned:
            rewriter.keep(node)
    return rewriter.finish()


def _read_by(node: Node, found: Mapping[Node, Node | None]) -> Sequence[Value]:
    """What a node, or what comes in its place, reads of the graph."""
    made = found.get(node)
    return node.inputs if made is None else (*made.inputs, node.inputs[1])


def _is_matrix_product(node: Node) -> bool:
    return (
        isinstance(node.op, ops.MatMul)
        and all(value.type.rank == 2 and 0 not in value.shape for value in node.inputs)
        and node.output.dtype in FLOATS
    )


def _transposed(value: Value) -> Node | None:
    """The node that transposes a matrix, if it is such a matrix."""
    made = value.producer
    return made if made is not None and made.op == _TRANSPOSE else None


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


FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Where axes come from when channels are moved to the first place behind the batch, and last."""


def turn_linear(graph: Graph, context: Context) -> Graph:
    """Linear layers over channels that were moved last become 1x1 convolutions.

    Networks with layer normalization move channels behind rows and columns, where the normalization
    and linear layers want them, and back.  A linear layer there is a 1x1 convolution where they
    were, which takes what follows it, a residual sum or a scale of each channel, into its kernel.
    Handles: a Transpose from (N, H, W, C) to (N, C, H, W) behind linear layers, and point-wise
    operators of one operand, of which each is the only reader of the one before: the Transpose is
    then in front of them, or none is needed where one to (N, H, W, C) is in front already.
    Refuses: weights that are not constant, operators that read a second tensor or a vector.
    """
    chains: dict[Node, list[Node]] = {}
    waiting: set[Node] = set()  # nodes of chains, which are made where the chain ends
    for node in graph.nodes:
        chain = _chain(graph, node)
        if chain and context.allow(f"{node.name} before {chain[0].name}"):
            chains[node] = chain
            waiting.update(chain)
            before = chain[0].inputs[0].producer
            alone = graph.only_reader(chain[0].inputs[0]) is chain[0]
            if before is not None and alone and _moves(before, LAST):
                waiting.add(before)
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in chains:
            rewriter.replace(node.output, _convolved(rewriter, chains[node]))
        elif node not in waiting:
            rewriter.keep(node)
    return rewriter.finish()


def _chain(graph: Graph, node: Node) -> list[Node]:
    """The nodes in front of a Transpose that can come behind it, from first to last; none if there
    is no linear layer among them."""
    if not _moves(node, FIRST):
        return []
    chain: list[Node] = []
    value, reader = node.inputs[0], node
    while (made := value.producer) is not None and graph.only_reader(value) is reader:
        constant = all(isinstance(operand, Constant) for operand in made.inputs[1:])
        alone = isinstance(made.op, Elementwise) and len(made.inputs) == 1
        if not alone and not (isinstance(made.op, Linear) and constant):
            break
        chain.insert(0, made)
        value, reader = made.inputs[0], made
    linear = [i for i, made in enumerate(chain) if isinstance(made.op, Linear)]
    return chain[linear[0] :] if linear else []


def _moves(node: Node, dims: tuple[int, ...]) -> bool:
    return isinstance(node.op, Transpose) and node.op.dims == dims


def _convolved(rewriter: Rewriter, chain: list[Node]) -> Value:
    source = chain[0].inputs[0]
    before = source.producer
    if before is not None and _moves(before, LAST):
        value = rewriter.value(before.inputs[0])
    else:
        name = rewriter.fresh(f"{chain[0].name}.input")
        move = Transpose(FIRST)
        value = rewriter.add(move, [rewriter.value(source)], name, chain[0].source).output
    for node in chain:
        operands = list(node.inputs[1:])
        op = node.op
        if isinstance(op, Linear):
            op, operands[0] = Conv2d(), _filter(node, operands[0])
        value = rewriter.add(op, [value, *operands], node.name, node.source).output
    return value


def _filter(node: Node, weight: Value) -> Constant:
    """A linear layer's weight as that of a 1x1 convolution; not named after the weight, which
    several layers may share."""
    assert isinstance(weight, Constant)
    type = TensorType((*weight.shape, 1, 1), weight.dtype)
    return Constant(type, f"{node.name}.filter", partial(_reshaped, weight, type.shape))


def _reshaped(weight: Constant, shape: tuple[int, ...]) -> np.ndarray:
    return weight.data.reshape(shape)


TURN_LINEAR = Pass("turn_linear", turn_linear, requires=("simplify",))


def turn_rows(graph: Graph, context: Context) -> Graph:
    """Linear layers take rows in the order in which they lie.

    A linear layer computes each row for itself.  Where batch and tokens change places in front of
    attention's projections, and back behind the last one, both moves can be where the attention
    between them reads and writes matrices in any order.
    Handles: a Transpose of rows in front of a linear layer whose result is only seen in other
    shapes and orders: it comes behind the layer.  One behind a linear layer whose operand is such a
    view comes in front of it.
    Refuses: a Transpose that moves features; everything under strategies that leave layers apart,
    and where products do not read matrices where they lie.
    """
    if context.strategy in APART or not context.target.turns_products:
        return graph
    return rows_turned(graph, context)


def rows_turned(graph: Graph, context: Context) -> Graph:
    """The same for any target and strategy."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        before, behind = _in_front(graph, node), _linear_before(graph, node)
        if before is not None and context.allow(f"{before.name} behind {node.name}"):
            _put_behind(rewriter, node, before)
        elif behind is not None and context.allow(f"{node.name} before {behind[-1].name}"):
            _put_before(rewriter, node, behind)
        else:
            rewriter.keep(node)
    return drop_unread(rewriter.finish()) if rewriter.changes else graph


def _turns_rows(node: Node | None) -> bool:
    op = None if node is None else node.op
    return isinstance(op, Transpose) and op.dims[-1] == len(op.dims) - 1


def _in_front(graph: Graph, node: Node) -> Node | None:
    """The Transpose in front of a linear layer that may come behind it."""
    move = node.inputs[0].producer if isinstance(node.op, Linear) else None
    if move is None or not _turns_rows(move) or node.output in graph.results:
        return None
    return move if all(map(is_view, graph.readers[node.output])) else None


def _linear_before(graph: Graph, node: Node) -> list[Node] | None:
    """The linear layer in front of a Transpose, and other shapes between them, where it may come in
    front of them."""
    if not _turns_rows(node):
        return None
    found: list[Node] = []
    value, reader = node.inputs[0], node
    while (made := value.producer) is not None and graph.only_reader(value) is reader:
        found.insert(0, made)
        if isinstance(made.op, Linear):
            before = made.inputs[0].producer
            rows = [each.output.shape[-1] for each in found]
            return found if before is not None and is_view(before) and len({*rows}) == 1 else None
        if not isinstance(made.op, Reshaping):
            return None
        value, reader = made.inputs[0], made
    return None


def _put_behind(rewriter: Rewriter, node: Node, move: Node) -> None:
    operands = [move.inputs[0], *node.inputs[1:]]
    name = rewriter.fresh(f"{node.name}.rows")
    made = rewriter.add(node.op, list(map(rewriter.value, operands)), name, node.source)
    turned = rewriter.add(move.op, [made.output], node.name, move.source)
    rewriter.replace(node.output, turned.output)


def _put_before(rewriter: Rewriter, move: Node, between: list[Node]) -> None:
    linear = between[0]
    value = rewriter.value(linear.inputs[0])
    features = value.shape[-1]
    shaped: Operator = View((*move.inputs[0].shape[:-1], features))
    for op in (shaped, move.op):
        name = rewriter.fresh(f"{linear.name}.{op.name.lower()}")
        value = rewriter.add(op, [value], name, move.source).output
    operands = [value, *map(rewriter.value, linear.inputs[1:])]
    made = rewriter.add(linear.op, operands, move.name, linear.source)
    rewriter.replace(move.output, made.output)


TURN_ROWS = Pass("turn_rows", turn_rows)
