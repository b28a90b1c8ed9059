"""Matches attention, two matrix products around a softmax, as one operator, and expands it again.

As one operator, attention has one gradient, which keeps no matrix of scores, however the network
wrote it.  For a target without an attention kernel the operator is expanded into products again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, exp, log
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Operator, Reshaping
from minidnn.graph.types import FLOATS, HALF_DTYPES

__all__ = [
    *("AttentionNodes", "compose_attention", "expand_attention", "factor_of", "is_cast"),
    "read_transposed_results",
]


Stands = Callable[[Value], Value]
"""Maps a value of the old graph to the value that replaces it in the rewritten graph."""


def compose_attention(graph: Graph, kept: Collection[Value] = ()) -> tuple[Graph, Stands]:
    """The graph with :class:`Attention` in place of products with a softmax between them, and the
    map from old values to new ones.

    Constant factors of queries, keys and scores are folded into the scale, and any node may
    transpose the keys.  A pattern is left alone where another node reads a value between the
    products, where such a value is among ``kept``, and where something else is computed there, such
    as a mask or dropout.  Nodes that nothing reads any more stay in the graph.
    """
    matches = {}
    for node in graph.nodes:
        attention = _attention(graph, node, kept)
        if attention is not None:
            matches[node] = attention
    rewriter = Rewriter(graph)
    if not matches:
        return graph, rewriter.value
    for node in graph.nodes:
        if node not in matches:
            rewriter.keep(node)
            continue
        attention = matches[node]
        q, k, v = map(rewriter.value, attention.operands)
        if attention.is_turned:
            name = rewriter.fresh(f"{node.name}.keys")
            k = rewriter.add(_transpose(k), [k], name, node.source).output
        fused = rewriter.add(ops.Attention(attention.scale), [q, k, v], node.name, node.source)
        rewriter.replace(node.output, fused.outputs[0])
    return rewriter.finish(), rewriter.value


def expand_attention(graph: Graph) -> tuple[Graph, Stands]:
    """The graph with products and softmax in place of all attention and its gradients, and the map
    from old values to new ones."""
    rewriter = Rewriter(graph)
    if not any(isinstance(node.op, _BOTH) for node in graph.nodes):
        return graph, rewriter.value
    nodes = AttentionNodes(rewriter)
    for node in graph.nodes:
        if isinstance(node.op, _BOTH):
            nodes.expand(node, bool(graph.readers[node.outputs[-1]]))
        else:
            rewriter.keep(node)
    return rewriter.finish(), rewriter.value


def read_transposed_results(graph: Graph) -> Graph:
    """The graph whose attention gradients read the attention's result from the end of the chain of
    transposes and reshapes that follows it, by way of the inverse moves.

    It applies where that chain is all else that reads the result.  The end of the chain is kept for
    the backward pass anyway, so the result itself need not be.
    """
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if isinstance(node.op, ops.AttentionGradient) and (chain := _moves(graph, node)):
            value = rewriter.value(chain[-1].output)
            for move in reversed(chain):
                op: Operator = ops.View(move.inputs[0].shape)
                if isinstance(move.op, ops.Transpose):
                    dims = move.op.dims
                    op = ops.Transpose(tuple(dims.index(axis) for axis in range(len(dims))))
                name = rewriter.fresh(f"{node.name}.{op.name.lower()}")
                value = rewriter.add(op, [value], name, node.source).output
            operands = list(map(rewriter.value, node.inputs))
            operands[3] = value
            copy = rewriter.add(node.op, operands, node.name, node.source)
            for old, new in zip(node.outputs, copy.outputs, strict=True):
                rewriter.replace(old, new)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _moves(graph: Graph, gradient: Node) -> list[Node]:
    """The chain of transposes and reshapes that follows the attention result which ``gradient``
    reads; empty if other nodes read that result, or if the chain has no transpose."""
    value = gradient.inputs[3]
    readers = [n for n in graph.readers[value] if not isinstance(n.op, ops.AttentionGradient)]
    if len(readers) != 1 or value in graph.results:
        return []
    chain: list[Node] = []
    node: Node | None = readers[0]
    while node is not None and isinstance(node.op, (ops.Transpose, Reshaping)):
        chain.append(node)
        node = graph.only_reader(node.output)
    return chain if any(isinstance(node.op, ops.Transpose) for node in chain) else []


_BOTH = (ops.Attention, ops.AttentionGradient)


class AttentionNodes:
    """Expands attention, and its gradient, into products and a softmax.

    The gradient reuses the scaled queries, transposed keys and weights of the attention with the
    same operands, if the same graph has one.
    """

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        #: For queries, keys and scale: the scaled queries, transposed keys, and softmax weights.
        self._known: dict[tuple[Value, Value, float], tuple[Value, Value, Value]] = {}
        self._node: Node | None = None

    def expand(self, node: Node, keeps_logs: bool = True) -> None:
        """Replaces one node; ``keeps_logs`` says whether an attention's logarithms are computed."""
        self._node = node
        operands = list(map(self._rewriter.value, node.inputs))
        results = (
            self._attention(node, operands, keeps_logs)
            if isinstance(node.op, ops.Attention)
            else self._gradient(node, operands)
        )
        for old, new in zip(node.outputs, results, strict=False):
            self._rewriter.replace(old, new)

    def _attention(self, node: Node, operands: list[Value], keeps_logs: bool) -> list[Value]:
        """The result, and the logarithms if they are read."""
        q, k, v = operands
        assert isinstance(node.op, ops.Attention)
        scaled, keys_t, scores = self._scores(q, k, node.op.scale)
        weights = self._add(ops.Softmax(-1), scores)
        self._known[q, k, node.op.scale] = scaled, keys_t, weights
        results = [self._add(ops.MatMul(), self._narrow(weights, v), v)]
        if keeps_logs:
            last = (scores.type.rank - 1,)
            row_max = self._add(ops.Reduce("max", last, keepdim=True), scores)
            exponentials = self._compute(exp(_X - _Y), scores, row_max)
            row_sum = self._add(ops.Reduce("sum", last, keepdim=True), exponentials)
            results.append(self._compute(_X + log(_Y), row_max, row_sum))
        return results

    def _gradient(self, node: Node, operands: list[Value]) -> list[Value]:
        """The gradients of queries, keys and values."""
        q, k, v, _, logs, g = operands
        assert isinstance(node.op, ops.AttentionGradient)
        scale = node.op.scale
        if (q, k, scale) in self._known:
            scaled, keys_t, weights = self._known[q, k, scale]
        else:
            scaled, keys_t, scores = self._scores(q, k, scale)
            weights = self._compute(exp(_X - _Y), scores, logs)
        narrow_weights = self._narrow(weights, v)
        by_weights = self._wide(self._add(ops.MatMul(), g, self._add(_transpose(v), v)))
        by_values = self._add(
            ops.MatMul(), self._add(_transpose(narrow_weights), narrow_weights), g
        )
        products = self._compute(_X * _Y, by_weights, weights)
        last = (products.type.rank - 1,)
        row_sum = self._add(ops.Reduce("sum", last, keepdim=True), products)
        centred = self._compute(_X - _Y, by_weights, row_sum)
        by_scores = self._narrow(self._compute(_X * _Y, centred, weights), v)
        by_scaled = self._add(ops.MatMul(), by_scores, self._add(_transpose(keys_t), keys_t))
        by_keys_t = self._add(ops.MatMul(), self._add(_transpose(scaled), scaled), by_scores)
        by_queries = self._add(_scaling(scale), by_scaled)
        return [by_queries, self._add(_transpose(by_keys_t), by_keys_t), by_values]

    def _scores(self, q: Value, k: Value, scale: float) -> tuple[Value, Value, Value]:
        """The scaled queries, transposed keys, and their product, at least in float32."""
        scaled = self._add(_scaling(scale), q)
        keys_t = self._add(_transpose(k), k)
        return scaled, keys_t, self._wide(self._add(ops.MatMul(), scaled, keys_t))

    def _add(self, op: Operator, *operands: Value) -> Value:
        node, rewriter = self._node, self._rewriter
        assert node is not None
        name = rewriter.fresh(f"{node.name}.{op.name.lower()}")
        return rewriter.add(op, operands, name, node.source).output

    def _compute(self, expression: Expression, *operands: Value) -> Value:
        return self._add(ops.Formula(expression, tensors=len(operands)), *operands)

    def _wide(self, value: Value) -> Value:
        """A float16 or bfloat16 value cast to float32; any other value as it is."""
        if value.dtype not in HALF_DTYPES:
            return value
        return self._add(ops.Formula(argument(0), title="Cast", compute="float32"), value)

    def _narrow(self, value: Value, like: Value) -> Value:
        """The value cast to the dtype of ``like``."""
        if value.dtype == like.dtype:
            return value
        cast = ops.Formula(argument(0), title="Cast", dtype=like.dtype, compute="float32")
        return self._add(cast, value)


_X, _Y = argument(0), argument(1)


def _scaling(scale: float) -> Operator:
    return ops.Formula(argument(0) * scale, title="Scale")


def _transpose(value: Value) -> Operator:
    rank = value.type.rank
    return ops.Transpose((*range(rank - 2), rank - 1, rank - 2))


def _is_transpose(node: Node) -> bool:
    return isinstance(node.op, ops.Transpose) and node.op == _transpose(node.output)


@dataclass(frozen=True)
class _Found:
    """A matched attention: its scale, and its queries, keys and values.

    ``is_turned`` says that the keys were found already transposed, (..., D, S).
    """

    scale: float
    operands: tuple[Value, Value, Value]
    is_turned: bool


@dataclass(frozen=True)
class _ScaledValue:
    """A value before multiplications by constants and casts, and the product of the constants."""

    value: Value
    factor: float = 1.0


def _attention(graph: Graph, node: Node, kept: Collection[Value]) -> _Found | None:
    """The attention that ends with the matrix product ``node``; None if there is none."""
    if not isinstance(node.op, ops.MatMul) or node.output.dtype not in FLOATS:
        return None
    v = node.inputs[1]
    softmax = _source(graph, node.inputs[0], kept)
    rank = node.output.type.rank
    if softmax is None or softmax.factor != 1.0:
        return None
    softmax_node = softmax.value.producer
    if (
        softmax_node is None
        or not isinstance(softmax_node.op, ops.Softmax)
        or softmax_node.op.dim % rank != rank - 1
    ):
        return None
    scores = _source(graph, softmax_node.inputs[0], kept)
    product = None if scores is None else scores.value.producer
    if scores is None or product is None or not isinstance(product.op, ops.MatMul):
        return None
    q, k = (_unscaled(value, kept) for value in product.inputs)
    transpose, key_factor = k.value.producer, k.factor
    is_turned = transpose is None or not _is_transpose(transpose) or k.value in kept
    if not is_turned:
        assert transpose is not None
        k = _unscaled(transpose.inputs[0], kept)
        key_factor *= k.factor
    scale = scores.factor * q.factor * key_factor
    types = [q.value.type, k.value.type, v.type]
    if is_turned and types[1].rank >= 2:
        *batch, size, keys = types[1].shape
        types[1] = types[1].with_shape((*batch, keys, size))
    one_dtype = {t.dtype for t in types} == {node.output.dtype}
    if not (one_dtype and len({t.shape[:-2] for t in types}) == 1 and scale > 0.0):
        return None
    return _Found(scale, (q.value, k.value, v), is_turned)


def _source(graph: Graph, value: Value, kept: Collection[Value]) -> _ScaledValue | None:
    """The value behind a chain of constant factors and casts that ends in ``value``.

    None if more than one node reads a value of the chain, or if one of them is ``kept``.
    """
    scaled = _ScaledValue(value)
    while True:
        value = scaled.value
        if value in kept or graph.only_reader(value) is None:
            return None
        node = value.producer
        if node is None:
            return scaled
        factor = 1.0 if is_cast(node) else factor_of(node)
        if factor is None:
            return scaled
        scaled = _ScaledValue(node.inputs[0], scaled.factor * factor)


def _unscaled(value: Value, kept: Collection[Value]) -> _ScaledValue:
    """The value before constant factors in its own dtype, however many nodes read it.

    The walk stops at a value that is ``kept``.
    """
    scaled = _ScaledValue(value)
    while (node := scaled.value.producer) is not None and scaled.value not in kept:
        factor = factor_of(node)
        if factor is None or node.inputs[0].dtype != value.dtype:
            break
        scaled = _ScaledValue(node.inputs[0], scaled.factor * factor)
    return scaled


def is_cast(node: Node) -> bool:
    """Whether a node gives its one operand as it is, or cast to another dtype."""
    op = node.op
    if not isinstance(op, Elementwise) or len(node.inputs) != 1:
        return False
    return op.expression().op == "argument"


def factor_of(node: Node) -> float | None:
    """The constant by which a node multiplies its one operand; None if it does something else."""
    op = node.op
    if not isinstance(op, Elementwise) or len(node.inputs) != 1:
        return None
    expression = op.expression()
    if expression.op != "mul":
        return None
    argument, number = sorted(expression.operands, key=lambda each: each.op)
    if (argument.op, number.op) != ("argument", "constant"):
        return None
    assert isinstance(number.value, (int, float))
    return float(number.value)
