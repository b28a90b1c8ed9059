"""Drawn products of batches of matrices, and what they are in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.backends.cuda.target import CudaTarget
from minidnn.gradients.reverse import pullback
from minidnn.graph import operators as ops
from minidnn.graph.attention_patterns import compose_attention, read_transposed_results
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType, rounded_to
from minidnn.passes.infrastructure import Context
from minidnn.passes.transpose_products import transpose_products

from .cards import H200

SIZES = (1, 2, 3, 7, 8, 16, 17, 24, 40, 64, 65, 72, 96, 129)
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


@dataclass(frozen=True)
class DrawnProduct:
    """A graph of one product with transposes around it, what it becomes, and numbers for it."""

    graph: Graph
    turned: Graph
    inputs: tuple[np.ndarray, ...]

    @property
    def product(self) -> Node:
        """The product, or the region that it became."""
        (node,) = (n for n in self.turned.nodes if n.op.name in ("MatMul", "FusedProduct"))
        return node

    @property
    def is_integer(self) -> bool:
        """Whether all of the graph became one node."""
        return len(self.turned.nodes) == 1

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """The result in float64, and how far from it one may be."""
        (exact,) = evaluate(self.graph, self.inputs, "float64")
        with np.errstate(all="ignore"):
            (size,) = evaluate(self.graph, [np.abs(x) for x in self.inputs], "float64")
        dtype = self.graph.outputs[0].dtype
        return exact, ROUNDING[dtype] * np.abs(exact) + 2.0**-20 * size + 1e-7


def chain(nodes: list[Node], value: Value, operators: Sequence[Operator]) -> Value:
    for op in operators:
        nodes.append(Node(op, [value], f"n{len(nodes)}"))
        value = nodes[-1].output
    return value


def product_graph(
    shapes: Sequence[tuple[int, ...]],
    dtype: str,
    before: Sequence[Sequence[Operator]] = ((), ()),
    reduction: Sequence[Operator] = (),
) -> Graph:
    inputs = [Value(TensorType(s, dtype), n) for s, n in zip(shapes, "ab", strict=True)]
    nodes: list[Node] = []
    operands = [chain(nodes, v, some) for v, some in zip(inputs, before, strict=True)]
    nodes.append(Node(ops.MatMul(), operands, "product"))
    return Graph(inputs, [chain(nodes, nodes[-1].output, reduction)], nodes, "drawn")


def factor(number: float) -> Operator:
    return ops.Formula(argument(0) * number, title="Scale")


def turned(graph: Graph, dtype: str) -> Graph:
    return transpose_products(graph, Context(CudaTarget(H200.device(dtype), dtype)))


def drawn(seed: int, dtype: str, special: bool = False) -> DrawnProduct:
    """Odd sizes, batches that broadcast, transposes of all axes but for the last of a line, factors
    that are powers of two, but for each fourth seed; ``special``: with infinities and NaN."""
    plain = seed % 4 == 0
    random = np.random.default_rng(seed)
    rows, columns, inner = random.choice(SIZES, 3).tolist()
    batch = random.integers(1, 4, random.integers(0, 3)).tolist()
    shapes, before = [], []
    for matrix in ((rows, inner), (inner, columns)):
        own = [n if random.random() < 0.8 else 1 for n in batch]
        own = own[1:] if own and own[0] == 1 and random.random() < 0.5 else own
        shape = [*own, *matrix]
        order = _order(random, len(shape))
        given: list[int] = [0] * len(shape)
        for axis, source in enumerate(order):
            given[source] = shape[axis]
        operators: list[Operator] = (
            [ops.Transpose(tuple(order))] if random.random() < 0.7 and not plain else []
        )
        shapes.append(tuple(given) if operators else tuple(shape))
        if random.random() < 0.3 and not plain:
            operators.insert(random.integers(0, len(operators) + 1), factor(0.25))
        before.append(operators)
    wide = max(map(len, shapes))
    reduction: list[Operator] = []
    if random.random() < 0.5 and not plain:
        reduction.append(ops.Transpose(tuple(_order(random, wide))))
    if random.random() < 0.3 and not plain:
        reduction.append(factor(0.5))
    graph = product_graph(shapes, dtype, before, reduction)
    inputs: list[np.ndarray] = []
    for made in shapes:
        x = random.standard_normal(made).astype(np.float32)
        if special:
            places = random.random(made)
            x[places < 0.02] = np.inf
            x[places > 0.98] = -np.inf
            x[(places > 0.4) & (places < 0.41)] = np.nan
        inputs.append(rounded_to(dtype, x).astype(np.float32))
    return DrawnProduct(graph, turned(graph, dtype), tuple(inputs))


def _order(random: np.random.Generator, rank: int) -> list[int]:
    """An order of axes: any that are in front, and the last two that or the other way round; or one
    of the matrix's changes its place with one in front."""
    order = [*random.permutation(rank - 2).tolist(), rank - 2, rank - 1]
    if random.random() < 0.5:
        order[-2:] = reversed(order[-2:])
    if rank > 2 and random.random() < 0.5:
        at, of = random.integers(0, rank - 2), order.index(rank - 2)
        order[at], order[of] = order[of], order[at]
    return order


def attention_graph(
    batch: int, queries: int, keys: int, heads: int, size: int, dtype: str = "float32"
) -> Graph:
    """Attention as layers make it of linear layers' results (batch, tokens, heads * size)."""
    nodes: list[Node] = []
    inputs = []
    for name, tokens in (("q", queries), ("k", keys), ("v", keys)):
        inputs.append(Value(TensorType((batch, tokens, heads * size), dtype), name))
    split = [
        chain(nodes, x, [ops.View((*x.shape[:2], heads, size)), ops.Transpose((0, 2, 1, 3))])
        for x in inputs
    ]
    scaled = chain(nodes, split[0], [factor(size**-0.5)])
    turned_keys = chain(nodes, split[1], [ops.Transpose((0, 1, 3, 2))])
    nodes.append(Node(ops.MatMul(), [scaled, turned_keys], "scores"))
    weights = chain(nodes, nodes[-1].output, [ops.Softmax(-1)])
    nodes.append(Node(ops.MatMul(), [weights, split[2]], "context"))
    joined = [ops.Transpose((0, 2, 1, 3)), ops.View((batch, queries, heads * size))]
    return Graph(inputs, [chain(nodes, nodes[-1].output, joined)], nodes, "attention")


def packed_graph(batch: int, tokens: int, heads: int, size: int, dtype: str = "float32") -> Graph:
    """Attention of tokens to each other, of slices of one value, as PyTorch's functions make it."""
    x = Value(TensorType((tokens, batch, 3 * heads * size), dtype), "x")
    nodes: list[Node] = []
    split = chain(
        nodes,
        x,
        [
            ops.View((1, tokens, batch, 3, heads * size)),
            ops.Transpose((3, 1, 2, 0, 4)),
            ops.View((3, tokens, batch, heads * size)),
        ],
    )
    operands = []
    for i in range(3):
        cut = ops.Slice((i, 0, 0, 0), (1, tokens, batch, heads * size), (1, 1, 1, 1))
        shapes = [ops.View((tokens, batch * heads, size)), ops.Transpose((1, 0, 2))]
        view = ops.View((batch, heads, tokens, size))
        operands.append(chain(nodes, split, [cut, *shapes, view]))
    turned = chain(nodes, operands[1], [ops.Transpose((0, 1, 3, 2))])
    nodes.append(Node(ops.MatMul(), [operands[0], turned], "scores"))
    weights = chain(nodes, nodes[-1].output, [factor(0.3), ops.Softmax(-1)])
    nodes.append(Node(ops.MatMul(), [weights, operands[2]], "context"))
    joined = [ops.Transpose((2, 0, 1, 3)), ops.View((tokens * batch, heads * size))]
    return Graph([x], [chain(nodes, nodes[-1].output, joined)], nodes, "packed")


def with_gradients(graph: Graph) -> Graph:
    """The graph with the gradients by its inputs behind its outputs, of gradients that are given
    behind its inputs; attention is one operator."""
    graph, _ = compose_attention(graph)
    back = pullback(graph, graph.inputs)
    both = Graph(back.inputs, (*graph.outputs, *back.outputs), back.nodes, graph.name)
    return read_transposed_results(both)
