"""turn_linear: linear layers over channels that were moved last become 1x1 convolutions.

Networks with layer normalization move channels behind rows and columns, where the normalization and
linear layers want them, and back.  A linear layer there is a 1x1 convolution where they were, which
takes what follows it, a residual sum or a scale of each channel, into its kernel.
Handles: a Transpose from (N, H, W, C) to (N, C, H, W) behind linear layers, and point-wise
operators of one operand, of which each is the only reader of the one before: the Transpose is then
in front of them, or none is needed where one to (N, H, W, C) is in front already.
Refuses: weights that are not constant, operators that read a second tensor or a vector.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise
from minidnn.graph.operators import Conv2d, Linear, Transpose
from minidnn.graph.types import TensorType
from minidnn.passes.infrastructure import Context, Pass

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Where axes come from when channels are moved to the first place behind the batch, and last."""


def turn_linear(graph: Graph, context: Context) -> Graph:
    """See the module."""
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
            rewriter.replace(node.output, _turned(rewriter, chains[node]))
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


def _turned(rewriter: Rewriter, chain: list[Node]) -> Value:
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
