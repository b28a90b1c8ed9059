"""attend: attention, and its gradient, are computed without scores in memory.

Handles: a softmax of rows between two products of batches of matrices in half precision, of which
the first one makes scores of queries and keys and the second one adds up values.  Where training
keeps the weights for their gradient, that becomes a region, too, which makes them again.
Refuses: weights or scores that anything else reads, such as a dropout or a mask; a gradient that
does not reach all of queries, keys and values; whatever the target refuses (noted with its reason);
everything under strategies that leave layers apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from minidnn.fusion.attention import (
    AttentionShape,
    FusedAttention,
    FusedAttentionGradient,
    attention_shape,
    gradient_shape,
    is_product,
)
from minidnn.fusion.collapse import APART
from minidnn.fusion.product_shape import product_of
from minidnn.graph.expression import argument, exp, log
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Operator
from minidnn.graph.operators import Formula, Reduce, Softmax
from minidnn.graph.types import HALVES
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.simplify import drop_dead


@dataclass(frozen=True)
class _Gradient:
    """The products of an attention's gradient: of the weights, and for queries, keys, values."""

    weights: Node
    queries: Node
    keys: Node
    values: Node

    @property
    def nodes(self) -> tuple[Node, Node, Node, Node]:
        return self.weights, self.queries, self.keys, self.values


@dataclass(frozen=True, eq=False)
class _Attention:
    """The nodes from scores to values, and the gradient's, if there is one."""

    nodes: Sequence[Node]
    shape: AttentionShape
    gradient: _Gradient | None

    @property
    def scores(self) -> Node:
        return self.nodes[0]

    @property
    def values(self) -> Node:
        return self.nodes[-1]

    @property
    def given(self) -> tuple[Value, Value, Value]:
        """Queries, keys and values."""
        (q, k), (_, v) = product_of(self.scores)[1], product_of(self.values)[1]
        return q, k, v


class _Refused(Exception):
    """Why a softmax is not part of a region."""


def attend(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART:
        return graph
    found: dict[Node, _Attention] = {}
    for node in graph.nodes:
        if isinstance(node.op, Softmax) and node.output.dtype != "float64":
            try:
                attention = _attention(graph, node, context)
            except _Refused as refused:
                context.notes[node.name] = f"scores lie in memory: {refused}"
                continue
            if context.allow(f"{node.name} with the products around it"):
                found[attention.values] = attention
    if not found:
        return graph
    return drop_dead(_rewritten(graph, found), context)


def _attention(graph: Graph, softmax: Node, context: Context) -> _Attention:
    assert isinstance(softmax.op, Softmax)
    rank = softmax.output.type.rank
    if softmax.op.dim % rank != rank - 1:
        raise _Refused("it is along another axis")
    before = [softmax]
    while (made := before[0].inputs[0].producer) is not None:
        if graph.only_reader(made.output) is not before[0]:
            raise _Refused("something else reads them")
        before.insert(0, made)
        if not _is_cast(made):
            break
    scores = before[0]
    if not is_product(scores) or scores.output.dtype not in HALVES:
        raise _Refused("no product of halves makes them")
    weights = _rounded(graph, softmax.output)
    if any(value in graph.results for value in weights):
        raise _Refused("its result is wanted")
    readers = _readers(graph, weights)
    shapes = {node: attention_shape(scores, node) for node in readers if is_product(node)}
    whole = [node for node, shape in shapes.items() if isinstance(shape, AttentionShape)]
    if len(whole) != 1:
        why = [shape for shape in shapes.values() if isinstance(shape, str)]
        raise _Refused(why[0] if why else "no product with values reads its result")
    (values,) = whole
    shape = shapes[values]
    assert isinstance(shape, AttentionShape)
    if (reason := context.target.refuse_attention(shape)) is not None:
        raise _Refused(reason)
    casts = [value.producer for value in weights if value in values.inputs and value.producer]
    nodes = list(dict.fromkeys((*before, *casts, values)))
    readers.remove(values)
    gradient = _gradient(graph, readers, weights, nodes, shape, context) if readers else None
    return _Attention(nodes, shape, gradient)


def _gradient(
    graph: Graph,
    readers: Sequence[Node],
    weights: Sequence[Value],
    nodes: Sequence[Node],
    shape: AttentionShape,
    context: Context,
) -> _Gradient:
    """The gradient that reads the weights beside the product with values."""
    scores, values = nodes[0], nodes[-1]
    products = [node for node in readers if is_product(node)]
    others = [node for node in readers if not is_product(node)]
    if len(products) != 1 or len(others) != 2:
        raise _Refused("something else reads its result")
    # What is taken off a row is the sum of the weights' gradients times weights.
    times, of_scores = sorted(others, key=lambda node: _reduced(graph, node) is None)
    total = _reduced(graph, times)
    less = None if total is None else _only(graph, total.output)
    if total is None or less is None or not _computes(less, argument(0) - argument(1)):
        raise _Refused("something else reads its result")
    of_weights = _source(less.inputs[0])
    if of_weights is None or not is_product(of_weights) or _source(less.inputs[1]) is not total:
        raise _Refused("no product makes the gradient of its result")
    for node, other in ((times, of_weights), (of_scores, less)):
        made = {_source(value) for value in node.inputs if value not in weights}
        if made != {other} or not _computes(node, argument(0) * argument(1)):
            raise _Refused("its gradient is another one")
    if {*_readers(graph, _rounded(graph, of_weights.output))} != {times, less}:
        raise _Refused("something else reads the gradient of its result")
    if _only(graph, less.output) is not of_scores:
        raise _Refused("something else reads its gradient")
    changes = _rounded(graph, of_scores.output)
    last = _readers(graph, changes)
    if len(last) != 2 or not all(map(is_product, last)):
        raise _Refused("its gradient does not reach queries and keys alone")
    q, k = product_of(scores)[1]
    g, v = product_of(of_weights)[1]
    wanted = [(changes, k), (changes, q), (weights, g)]
    for of_queries, of_keys in (last, last[::-1]):
        found = _Gradient(of_weights, of_queries, of_keys, products[0])
        read = [product_of(node)[1] for node in found.nodes[1:]]
        lies = gradient_shape((scores, *found.nodes), shape.y)
        if isinstance(lies, str) or v is not product_of(values)[1][1]:
            continue
        if all(one[0] in made and one[1] is x for one, (made, x) in zip(read, wanted, strict=True)):
            break
    else:
        raise _Refused("its gradient multiplies something else")
    if (reason := context.target.refuse_attention_gradient(lies)) is not None:
        raise _Refused(reason)
    inner = [node.output for node in (times, total, less, of_weights)]
    if any(value in graph.results for value in (*inner, *changes)):
        raise _Refused("its gradient is wanted")
    return found


def _rewritten(graph: Graph, found: dict[Node, _Attention]) -> Graph:
    rewriter = Rewriter(graph)
    logs: dict[_Attention, Value] = {}
    first: dict[Node, _Attention] = {}
    replaced: set[Node] = set()
    for attention in found.values():
        if attention.gradient is not None:
            nodes = attention.gradient.nodes
            first[min(nodes, key=graph.position.__getitem__)] = attention
            replaced.update(nodes)
    for node in graph.nodes:
        if node in found:
            attention = found[node]
            given = list(map(rewriter.value, attention.given))
            forward = FusedAttention(_forward(attention))
            made = rewriter.add(forward, given, node.name, node.source)
            rewriter.replace(node.output, made.outputs[0])
            if attention.gradient is not None:
                logs[attention] = made.outputs[1]
            continue
        if node in first:
            attention = first[node]
            assert attention.gradient is not None
            y, (g, _) = attention.values.output, product_of(attention.gradient.weights)[1]
            given = [rewriter.value(value) for value in (*attention.given, y, g)]
            lines = attention.shape.y
            body = _backward(attention, logs[attention])
            backward = FusedAttentionGradient(body, (lines.rows, lines.batch))
            made = rewriter.add(backward, [*given, logs[attention]], node.name, node.source)
            for old, new in zip(attention.gradient.nodes[1:], made.outputs, strict=True):
                rewriter.replace(old.output, new)
        if node not in replaced:
            rewriter.keep(node)
    return rewriter.finish()


class _Body:
    """The nodes of a region as they are added."""

    def __init__(self, attention: _Attention) -> None:
        self.inputs = [Value(value.type, value.name) for value in attention.given]
        self.nodes: list[Node] = []
        self.source = attention.values.source

    def add(self, op: Operator, *operands: Value) -> Value:
        name = f"{op.name.lower()}.{len(self.nodes)}"
        self.nodes.append(Node(op, operands, name, self.source))
        return self.nodes[-1].output

    def multiply(self, product: Node, first: Value, second: Value) -> Value:
        """A product of other operands, which are told in the order of its shape."""
        turned = product_of(product)[1][0] is not product.inputs[0]
        return self.add(product.op, *((second, first) if turned else (first, second)))


def _forward(attention: _Attention) -> Graph:
    body = _Body(attention)
    q, k, v = body.inputs
    made = {attention.scores.output: body.multiply(attention.scores, q, k)}
    for node in attention.nodes[1:-1]:
        made[node.output] = body.add(node.op, made[node.inputs[0]])
    weights = made[attention.values.inputs[0]]
    outputs = [body.multiply(attention.values, weights, v)]
    if attention.gradient is not None:
        scores = made[attention.scores.output]
        scores = body.add(Formula(argument(0), title="Cast", compute="float32"), scores)
        last = (scores.type.rank - 1,)
        most = body.add(Reduce("max", last, keepdim=True), scores)
        powers = body.add(Formula(exp(argument(0) - argument(1)), tensors=2), scores, most)
        total = body.add(Reduce("sum", last, keepdim=True), powers)
        outputs.append(body.add(Formula(argument(0) + log(argument(1)), tensors=2), most, total))
    return Graph(body.inputs, outputs, body.nodes, attention.values.name)


def _backward(attention: _Attention, logs: Value) -> Graph:
    gradient = attention.gradient
    assert gradient is not None
    body = _Body(attention)
    of_result = product_of(gradient.weights)[1][0]
    more = (attention.values.output, of_result, logs)
    body.inputs += [Value(value.type, value.name) for value in more]
    q, k, v, _, g, logarithms = body.inputs
    x, y, z = map(argument, range(3))

    def compute(of: Callable[[], object], *operands: Value, dtype: str | None = None) -> Value:
        return body.add(Formula(of(), len(operands), 0, "Formula", dtype, "float32"), *operands)  # type: ignore[arg-type]

    scores = body.multiply(attention.scores, q, k)
    half = scores.dtype
    weights = compute(lambda: exp(x - y), scores, logarithms, dtype=half)
    changes = body.multiply(gradient.weights, g, v)
    shares = compute(lambda: x * y, weights, changes)
    total = body.add(Reduce("sum", (scores.type.rank - 1,), keepdim=True), shares)
    of_scores = compute(lambda: (x - y) * z, changes, total, weights, dtype=half)
    outputs = [
        body.multiply(gradient.queries, of_scores, k),
        body.multiply(gradient.keys, of_scores, q),
        body.multiply(gradient.values, weights, g),
    ]
    return Graph(body.inputs, outputs, body.nodes, f"{attention.values.name}.gradient")


def _is_cast(node: Node) -> bool:
    op = node.op
    if not isinstance(op, Elementwise) or len(node.inputs) != 1:
        return False
    return op.expression().op == "argument"


def _computes(node: Node, expression: object) -> bool:
    """Whether a node computes just that of its operands; of a product in any order."""
    op = node.op
    return isinstance(op, Elementwise) and op.channel_count == 0 and op.expression() == expression


def _source(value: Value) -> Node | None:
    """What makes a value, casts left out."""
    node = value.producer
    return _source(node.inputs[0]) if node is not None and _is_cast(node) else node


def _rounded(graph: Graph, value: Value) -> list[Value]:
    """A value and what casts make of it."""
    found = [value]
    for node in graph.readers[value]:
        if _is_cast(node):
            found += _rounded(graph, node.output)
    return found


def _readers(graph: Graph, values: Iterable[Value]) -> list[Node]:
    """What reads any of some values and is no cast."""
    found = (node for value in values for node in graph.readers[value])
    return list(dict.fromkeys(node for node in found if not _is_cast(node)))


def _only(graph: Graph, value: Value) -> Node | None:
    """The one node that reads a value, casts left out."""
    readers = _readers(graph, _rounded(graph, value))
    return readers[0] if len(readers) == 1 else None


def _reduced(graph: Graph, node: Node) -> Node | None:
    """The sum of rows that alone reads a node's result."""
    reader = _only(graph, node.output)
    if reader is None or not isinstance(reader.op, Reduce):
        return None
    op, rank = reader.op, node.output.type.rank
    return reader if (op.how, op.dims, op.keepdim) == ("sum", (rank - 1,), True) else None


ATTEND = Pass("attend", attend)
"""Behind turn_products: it looks at products as that one leaves them."""
