"""Attention written as products of matrices with a softmax between them, and the other way round.

As one operator attention has one gradient, which keeps no scores, however it was written; a target
that has no kernel for it computes products again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, exp, log
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Operator, Reshaping
from minidnn.graph.types import FLOATS, HALVES

__all__ = [
    *("AttentionNodes", "compose_attention", "expand_attention", "factor_of", "is_cast"),
    "read_results_behind",
]


Stands = Callable[[Value], Value]
"""What stands for a value of a graph in the one that was made of it."""


def compose_attention(graph: Graph, kept: Collection[Value] = ()) -> tuple[Graph, Stands]:
    """The graph with :class:`Attention` in place of products with a softmax between them, and what
    stands for its values.

    Factors of queries, keys and scores become its scale, and keys may be transposed by any node.
    Left as it is, is what somebody else reads, or is ``kept``, between the products, and what is
    computed there besides: masks, dropout.  Nodes that nothing reads any more stay.
    """
    found = {}
    for node in graph.nodes:
        attention = _attention(graph, node, kept)
        if attention is not None:
            found[node] = attention
    rewriter = Rewriter(graph)
    if not found:
        return graph, rewriter.value
    for node in graph.nodes:
        if node not in found:
            rewriter.keep(node)
            continue
        attention = found[node]
        q, k, v = map(rewriter.value, attention.operands)
        if attention.is_turned:
            name = rewriter.fresh(f"{node.name}.keys")
            k = rewriter.add(_turn(k), [k], name, node.source).output
        made = rewriter.add(ops.Attention(attention.scale), [q, k, v], node.name, node.source)
        rewriter.replace(node.output, made.outputs[0])
    return rewriter.finish(), rewriter.value


def expand_attention(graph: Graph) -> tuple[Graph, Stands]:
    """The graph with products and softmax in place of all attention and its gradients, and what
    stands for its values."""
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


def read_results_behind(graph: Graph) -> Graph:
    """The graph in which gradients of attention read its result where a chain of transposes and
    other shapes behind it, which is all else that reads it, has brought it: that is kept anyway."""
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
            made = rewriter.add(node.op, operands, node.name, node.source)
            for old, new in zip(node.outputs, made.outputs, strict=True):
                rewriter.replace(old, new)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _moves(graph: Graph, gradient: Node) -> list[Node]:
    """The transposes and other shapes behind the result that a gradient reads, as far as they only
    follow each other."""
    value = gradient.inputs[3]
    readers = [n for n in graph.readers[value] if not isinstance(n.op, ops.AttentionGradient)]
    if len(readers) != 1 or value in graph.results:
        return []
    found: list[Node] = []
    node: Node | None = readers[0]
    while node is not None and isinstance(node.op, (ops.Transpose, Reshaping)):
        found.append(node)
        node = graph.only_reader(node.output)
    return found if any(isinstance(node.op, ops.Transpose) for node in found) else []


_BOTH = (ops.Attention, ops.AttentionGradient)


class AttentionNodes:
    """Puts products and a softmax in place of attention, and of its gradient, which takes what
    attention has made where that is in the same graph."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        #: By queries, keys and scale: the scaled queries, transposed keys, and weights.
        self._known: dict[tuple[Value, Value, float], tuple[Value, Value, Value]] = {}
        self._node: Node | None = None

    def expand(self, node: Node, keeps_logs: bool = True) -> None:
        """keeps_logs: whether logarithms are read, if the node is attention itself."""
        self._node = node
        given = list(map(self._rewriter.value, node.inputs))
        made = (
            self._attention(node, given, keeps_logs)
            if isinstance(node.op, ops.Attention)
            else self._gradient(node, given)
        )
        for old, new in zip(node.outputs, made, strict=False):
            self._rewriter.replace(old, new)

    def _attention(self, node: Node, given: list[Value], keeps_logs: bool) -> list[Value]:
        q, k, v = given
        assert isinstance(node.op, ops.Attention)
        scaled, turned, scores = self._scores(q, k, node.op.scale)
        weights = self._add(ops.Softmax(-1), scores)
        self._known[q, k, node.op.scale] = scaled, turned, weights
        made = [self._add(ops.MatMul(), self._narrow(weights, v), v)]
        if keeps_logs:
            last = (scores.type.rank - 1,)
            most = self._add(ops.Reduce("max", last, keepdim=True), scores)
            powers = self._compute(exp(_X - _Y), scores, most)
            total = self._add(ops.Reduce("sum", last, keepdim=True), powers)
            made.append(self._compute(_X + log(_Y), most, total))
        return made

    def _gradient(self, node: Node, given: list[Value]) -> list[Value]:
        q, k, v, _, logs, g = given
        assert isinstance(node.op, ops.AttentionGradient)
        scale = node.op.scale
        if (q, k, scale) in self._known:
            scaled, turned, weights = self._known[q, k, scale]
        else:
            scaled, turned, scores = self._scores(q, k, scale)
            weights = self._compute(exp(_X - _Y), scores, logs)
        halves = self._narrow(weights, v)
        changes = self._wide(self._add(ops.MatMul(), g, self._add(_turn(v), v)))
        of_values = self._add(ops.MatMul(), self._add(_turn(halves), halves), g)
        shares = self._compute(_X * _Y, changes, weights)
        last = (shares.type.rank - 1,)
        total = self._add(ops.Reduce("sum", last, keepdim=True), shares)
        less = self._compute(_X - _Y, changes, total)
        of_scores = self._narrow(self._compute(_X * _Y, less, weights), v)
        of_scaled = self._add(ops.MatMul(), of_scores, self._add(_turn(turned), turned))
        of_turned = self._add(ops.MatMul(), self._add(_turn(scaled), scaled), of_scores)
        of_queries = self._add(_scaling(scale), of_scaled)
        return [of_queries, self._add(_turn(of_turned), of_turned), of_values]

    def _scores(self, q: Value, k: Value, scale: float) -> tuple[Value, Value, Value]:
        """The scaled queries, transposed keys, and their product, at least in float32."""
        scaled = self._add(_scaling(scale), q)
        turned = self._add(_turn(k), k)
        return scaled, turned, self._wide(self._add(ops.MatMul(), scaled, turned))

    def _add(self, op: Operator, *operands: Value) -> Value:
        node, rewriter = self._node, self._rewriter
        assert node is not None
        name = rewriter.fresh(f"{node.name}.{op.name.lower()}")
        return rewriter.add(op, operands, name, node.source).output

    def _compute(self, expression: Expression, *operands: Value) -> Value:
        return self._add(ops.Formula(expression, tensors=len(operands)), *operands)

    def _wide(self, value: Value) -> Value:
        """A half in float32."""
        if value.dtype not in HALVES:
            return value
        return self._add(ops.Formula(argument(0), title="Cast", compute="float32"), value)

    def _narrow(self, value: Value, like: Value) -> Value:
        """A value in the dtype of another one."""
        if value.dtype == like.dtype:
            return value
        cast = ops.Formula(argument(0), title="Cast", dtype=like.dtype, compute="float32")
        return self._add(cast, value)


_X, _Y = argument(0), argument(1)


def _scaling(scale: float) -> Operator:
    return ops.Formula(argument(0) * scale, title="Scale")


def _turn(value: Value) -> Operator:
    rank = value.type.rank
    return ops.Transpose((*range(rank - 2), rank - 1, rank - 2))


def _is_turn(node: Node) -> bool:
    return isinstance(node.op, ops.Transpose) and node.op == _turn(node.output)


@dataclass(frozen=True)
class _Found:
    """An attention: its scale, and queries, keys, which may be transposed, and values."""

    scale: float
    operands: tuple[Value, Value, Value]
    is_turned: bool


@dataclass(frozen=True)
class _Scaled:
    """A value before it is multiplied by numbers and cast, and the product of these numbers."""

    value: Value
    factor: float = 1.0


def _attention(graph: Graph, node: Node, kept: Collection[Value]) -> _Found | None:
    """The attention of which a product is the last node; None if it is not one."""
    if not isinstance(node.op, ops.MatMul) or node.output.dtype not in FLOATS:
        return None
    v = node.inputs[1]
    softmax = _source(graph, node.inputs[0], kept)
    rank = node.output.type.rank
    if softmax is None or softmax.factor != 1.0:
        return None
    made = softmax.value.producer
    if made is None or not isinstance(made.op, ops.Softmax) or made.op.dim % rank != rank - 1:
        return None
    scores = _source(graph, made.inputs[0], kept)
    product = None if scores is None else scores.value.producer
    if scores is None or product is None or not isinstance(product.op, ops.MatMul):
        return None
    q, k = (_unscaled(value, kept) for value in product.inputs)
    turn, rest = k.value.producer, k.factor
    is_turned = turn is None or not _is_turn(turn) or k.value in kept
    if not is_turned:
        assert turn is not None
        k = _unscaled(turn.inputs[0], kept)
        rest *= k.factor
    scale = scores.factor * q.factor * rest
    types = [q.value.type, k.value.type, v.type]
    if is_turned and types[1].rank >= 2:
        *batch, size, keys = types[1].shape
        types[1] = types[1].with_shape((*batch, keys, size))
    same = {t.dtype for t in types} == {node.output.dtype}
    if not (same and len({t.shape[:-2] for t in types}) == 1 and scale > 0.0):
        return None
    return _Found(scale, (q.value, k.value, v), is_turned)


def _source(graph: Graph, value: Value, kept: Collection[Value]) -> _Scaled | None:
    """What a value that only one node reads is made of by numbers and casts that nothing else
    reads; None where something else reads it."""
    found = _Scaled(value)
    while True:
        value = found.value
        if value in kept or graph.only_reader(value) is None:
            return None
        node = value.producer
        if node is None:
            return found
        factor = 1.0 if is_cast(node) else factor_of(node)
        if factor is None:
            return found
        found = _Scaled(node.inputs[0], found.factor * factor)


def _unscaled(value: Value, kept: Collection[Value]) -> _Scaled:
    """What a value is made of by factors in its own dtype, whoever reads it besides; of what is
    kept it is itself."""
    found = _Scaled(value)
    while (node := found.value.producer) is not None and found.value not in kept:
        factor = factor_of(node)
        if factor is None or node.inputs[0].dtype != value.dtype:
            break
        found = _Scaled(node.inputs[0], found.factor * factor)
    return found


def is_cast(node: Node) -> bool:
    """Whether a node gives its one operand, in its own dtype or another one."""
    op = node.op
    if not isinstance(op, Elementwise) or len(node.inputs) != 1:
        return False
    return op.expression().op == "argument"


def factor_of(node: Node) -> float | None:
    """The number by which a node multiplies its one operand; None if it does something else."""
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
