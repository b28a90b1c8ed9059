"""attend: attention, and its gradient, are computed without scores in memory.

Handles: attention as an operator, or as a softmax of rows between two products.  Where the target
has a kernel, a region reads queries, keys and values where they lie, be these slices of one value
in another order, and writes the result so; the three gradients go to one value if nothing but a
join reads them.  All other attention becomes products and a softmax.
Refuses: weights or scores that anything else reads, such as a dropout or a mask, which are no
attention; whatever the target refuses (noted with its reason); regions under strategies that leave
layers apart.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from minidnn.fusion.attention import (
    AttentionGradientShape,
    AttentionShape,
    FusedAttention,
    FusedAttentionGradient,
    attention_shape,
    gradient_shape,
)
from minidnn.fusion.collapse import APART
from minidnn.fusion.strided import StridedView, before_view, is_view, view_of
from minidnn.graph.attention_patterns import AttentionNodes, compose_attention
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value, drop_unread
from minidnn.graph.operators import Attention, AttentionGradient, Concat
from minidnn.passes.infrastructure import Context, Pass

_BOTH = (Attention, AttentionGradient)
_ALIGNED = 8
"""Elements that kernels read at once: 16 bytes of halves."""


@dataclass(frozen=True)
class _Operand:
    """What an operand is a view of, and the nodes that make it."""

    source: Value
    nodes: Sequence[Node]
    view: StridedView


@dataclass(frozen=True)
class _Written:
    """The nodes behind results that views are written through, and how these lie: each result as a
    part of the last node's, or of itself."""

    nodes: Sequence[Node]
    views: Sequence[StridedView]
    ends: Sequence[Value]


def attend(graph: Graph, context: Context) -> Graph:
    """See the module."""
    apart = context.strategy in APART
    if not apart and context.target.turns_products:
        graph = drop_unread(compose_attention(graph)[0])
    found = [node for node in graph.nodes if isinstance(node.op, _BOTH)]
    if not found:
        return graph
    rewriter = Rewriter(graph)
    expanded = AttentionNodes(rewriter)
    gone: set[Node] = set()
    for node in graph.nodes:
        if node in gone:
            continue
        if not isinstance(node.op, _BOTH):
            rewriter.keep(node)
            continue
        operands = [_operand(value, gone) for value in node.inputs]
        written = _written(graph, node)
        reason = "layers are left apart" if apart else _why_not(node, operands, written, context)
        if reason is None and context.allow(f"{node.name} without scores in memory"):
            _add(rewriter, graph, node, operands, written)
            gone.update(written.nodes)
            continue
        if reason is not None and not apart:
            context.notes[node.name] = f"scores lie in memory: {reason}"
        expanded.expand(node, _is_read(graph, node.outputs[-1]))
    return drop_unread(rewriter.finish())


def _is_read(graph: Graph, value: Value) -> bool:
    return bool(graph.readers[value]) or value in graph.results


def _why_not(
    node: Node, operands: Sequence[_Operand], written: _Written, context: Context
) -> str | None:
    """Why there is no region for a node; None if there is one."""
    views = [operand.view for operand in operands]
    if isinstance(node.op, Attention):
        shape = attention_shape(node, [*views, *written.views])
        if isinstance(shape, AttentionShape):
            return context.target.refuse_attention(shape)
        return shape
    lies = gradient_shape(node, [*views, *written.views])
    if isinstance(lies, AttentionGradientShape):
        return context.target.refuse_attention_gradient(lies)
    return lies


def _operand(value: Value, gone: Container[Node]) -> _Operand:
    """The longest chain in front of a value that a kernel can read the beginning of instead; what
    is ``gone`` is within a region."""
    nodes: list[Node] = []
    best = _Operand(value, (), StridedView.dense(value))
    source = value
    while (node := source.producer) is not None and is_view(node) and node not in gone:
        nodes.insert(0, node)
        source = node.inputs[0]
        view = view_of(source, nodes)
        if view is None or not view.is_aligned(_ALIGNED):
            continue
        if not (isinstance(source, Constant) and view.offset):
            best = _Operand(source, tuple(nodes), view)
    return best


def _written(graph: Graph, node: Node) -> _Written:
    """Where the results of a node that are no logarithms are written to."""
    results = node.outputs[:1] if isinstance(node.op, Attention) else node.outputs
    chains = [list(_behind(graph, value)) for value in results]
    joins = {
        graph.only_reader(chain[-1].output if chain else value)
        for chain, value in zip(chains, results, strict=True)
    }
    if len(results) > 1 and len(joins) == 1:
        (join,) = joins
        if join is not None and isinstance(join.op, Concat) and len(join.inputs) == len(results):
            tail = [join, *_behind(graph, join.output)]
            for end in range(len(tail), 0, -1):
                paths = [[*chain, *tail[:end]] for chain in chains]
                views = [_through(value, path) for value, path in zip(results, paths, strict=True)]
                if found := _all_aligned(views):
                    own = [each for chain in chains for each in chain]
                    return _Written([*own, *tail[:end]], found, [tail[end - 1].output])
    nodes: list[Node] = []
    ends: list[Value] = []
    lying: list[StridedView] = []
    for chain, value in zip(chains, results, strict=True):
        for end in range(len(chain), -1, -1):
            view = _through(value, chain[:end])
            if view is not None and (end == 0 or view.is_aligned(_ALIGNED)):
                break
        assert view is not None
        nodes += chain[:end]
        ends.append(chain[end - 1].output if end else value)
        lying.append(view)
    return _Written(nodes, lying, ends)


def _behind(graph: Graph, value: Value) -> Iterator[Node]:
    """The views behind a value, each of which alone reads the one before."""
    while (node := graph.only_reader(value)) is not None and is_view(node):
        if node.output.type.size != value.type.size:
            return  # a part of it
        yield node
        value = node.output


def _through(value: Value, nodes: Sequence[Node]) -> StridedView | None:
    """How a value lies in what the last of the nodes behind it gives."""
    view: StridedView | None = StridedView.dense(nodes[-1].output if nodes else value)
    for before, node in zip([value, *(n.output for n in nodes)][-2::-1], nodes[::-1], strict=True):
        view = None if view is None else before_view(node, node.inputs.index(before), view)
    return view


def _all_aligned(views: Sequence[StridedView | None]) -> list[StridedView] | None:
    found = [view for view in views if view is not None and view.is_aligned(_ALIGNED)]
    return found if len(found) == len(views) else None


def _add(
    rewriter: Rewriter, graph: Graph, node: Node, operands: Sequence[_Operand], written: _Written
) -> None:
    """The region in the place of a node and of the views around it."""
    inputs: dict[Value, Value] = {}
    nodes: list[Node] = []
    given = []
    for number, operand in enumerate(operands):
        source = operand.source
        value = inputs.setdefault(source, Value(source.type, source.name))
        for each in operand.nodes:
            nodes.append(Node(each.op, [value], f"{each.name}.{number}", each.source))
            value = nodes[-1].output
        given.append(value)
    nodes.append(Node(node.op, given, node.name, node.source))
    stands = dict(zip(node.outputs, nodes[-1].outputs, strict=True))
    for each in sorted(written.nodes, key=graph.position.__getitem__):
        operands_on = [stands[value] for value in each.inputs]
        nodes.append(Node(each.op, operands_on, each.name, each.source))
        stands[each.output] = nodes[-1].output
    ends = list(written.ends)
    is_forward = isinstance(node.op, Attention)
    if is_forward and _is_read(graph, node.outputs[1]):
        ends.append(node.outputs[1])
    body = Graph(list(inputs.values()), [stands[value] for value in ends], nodes, node.name)
    region = FusedAttention(body) if is_forward else FusedAttentionGradient(body)
    new = rewriter.add(region, list(map(rewriter.value, inputs)), node.name, node.source)
    for old, result in zip(ends, new.outputs, strict=True):
        rewriter.replace(old, result)


ATTEND = Pass("attend", attend)
"""In front of turn_products, for which it leaves products of attention that no kernel computes."""
