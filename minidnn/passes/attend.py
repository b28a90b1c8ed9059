"""attend: attention and its gradient become regions that store no scores, as FlashAttention does.

Handles: attention as an operator, or as a softmax of rows between two matrix products.  Where the
target has a kernel, a region reads queries, keys and values as strided views, for example as
transposed slices of one value, and writes its result through views as well; the three gradients
are written into one value if only a Concat reads them.  All other attention is expanded to products
and a softmax.
Refuses: patterns whose weights or scores have other readers, such as a dropout or a mask; whatever
the target refuses (noted with its reason); regions under strategies that fuse no stacks.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from minidnn.fusion.attention import FusedAttention, FusedAttentionGradient
from minidnn.fusion.collapse import NO_STACKS
from minidnn.fusion.strided import StridedView, is_view, operand_view, view_of
from minidnn.graph.attention_patterns import AttentionNodes, compose_attention
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value, drop_unread
from minidnn.graph.operators import Attention, AttentionGradient, Concat
from minidnn.passes.infrastructure import Context, Pass

_BOTH = (Attention, AttentionGradient)
_ALIGNED = 8
"""Elements that kernels read at once, to which offsets and strides are aligned: 16 bytes of
float16 or bfloat16."""


@dataclass(frozen=True)
class _Operand:
    """An operand of a region: the value ``source``, which the kernel reads through ``view``, and
    the nodes that make the operand from it."""

    source: Value
    nodes: Sequence[Node]
    view: StridedView


@dataclass(frozen=True)
class _WrittenResults:
    """How a region writes its results.

    Attributes:
        nodes: the views after the results that become part of the region.
        ends: the values that are written: one for each result, or one for all.
    """

    nodes: Sequence[Node]
    ends: Sequence[Value]


def attend(graph: Graph, context: Context) -> Graph:
    """See the module."""
    unfused = context.strategy in NO_STACKS
    if not unfused and context.target.transposes_products:
        graph = drop_unread(compose_attention(graph)[0])
    attentions = [node for node in graph.nodes if isinstance(node.op, _BOTH)]
    if not attentions:
        return graph
    rewriter = Rewriter(graph)
    expanded = AttentionNodes(rewriter)
    absorbed: set[Node] = set()
    for node in graph.nodes:
        if node in absorbed:
            continue
        if not isinstance(node.op, _BOTH):
            rewriter.keep(node)
            continue
        if not unfused:
            operands = [_operand(value, absorbed) for value in node.inputs]
            written = _written(graph, node)
            region, read = _region(graph, node, operands, written)
            reason = region.why_not_strided or context.target.refuse_fusion(region)
            if reason is not None:
                context.notes[node.name] = f"scores are stored in memory: {reason}"
            elif context.allow(f"{node.name} without scores in memory"):
                new = rewriter.add(region, list(map(rewriter.value, read)), node.name, node.source)
                for old, result in zip(_results(graph, node, written), new.outputs, strict=True):
                    rewriter.replace(old, result)
                absorbed.update(written.nodes)
                continue
        expanded.expand(node, graph.is_read(node.outputs[-1]))
    return drop_unread(rewriter.finish())


def _operand(value: Value, gone: Container[Node]) -> _Operand:
    """The longest chain of views before a value whose source a kernel can read instead; nodes in
    ``gone`` are in another region."""
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


def _written(graph: Graph, node: Node) -> _WrittenResults:
    """Where a region writes the results of an attention or its gradient, except for the logarithms
    that attention keeps for its gradient."""
    results = node.outputs[:1] if isinstance(node.op, Attention) else node.outputs
    chains = [list(_behind(graph, value)) for value in results]
    readers = {
        graph.only_reader(chain[-1].output if chain else value)
        for chain, value in zip(chains, results, strict=True)
    }
    if len(results) > 1 and len(readers) == 1:
        (concat,) = readers
        if (
            concat is not None
            and isinstance(concat.op, Concat)
            and len(concat.inputs) == len(results)
        ):
            tail = [concat, *_behind(graph, concat.output)]
            for end in range(len(tail), 0, -1):
                paths = [[*chain, *tail[:end]] for chain in chains]
                views = [_through(value, path) for value, path in zip(results, paths, strict=True)]
                if all(view is not None and view.is_aligned(_ALIGNED) for view in views):
                    before_concat = [each for chain in chains for each in chain]
                    return _WrittenResults([*before_concat, *tail[:end]], [tail[end - 1].output])
    nodes: list[Node] = []
    ends: list[Value] = []
    for chain, value in zip(chains, results, strict=True):
        for end in range(len(chain), -1, -1):
            view = _through(value, chain[:end])
            if view is not None and (end == 0 or view.is_aligned(_ALIGNED)):
                break
        nodes += chain[:end]
        ends.append(chain[end - 1].output if end else value)
    return _WrittenResults(nodes, ends)


def _behind(graph: Graph, value: Value) -> Iterator[Node]:
    """The chain of views after a value, each of which is the only reader of the one before."""
    while (node := graph.only_reader(value)) is not None and is_view(node):
        if node.output.type.size != value.type.size:
            return  # it drops elements
        yield node
        value = node.output


def _through(value: Value, nodes: Sequence[Node]) -> StridedView | None:
    """The offset and strides of a value in the result of the last of these nodes after it; None if
    it is no strided view of that result."""
    view: StridedView | None = StridedView.dense(nodes[-1].output if nodes else value)
    for before, node in zip([value, *(n.output for n in nodes)][-2::-1], nodes[::-1], strict=True):
        view = None if view is None else operand_view(node, node.inputs.index(before), view)
    return view


def _region(
    graph: Graph, node: Node, operands: Sequence[_Operand], written: _WrittenResults
) -> tuple[FusedAttention | FusedAttentionGradient, Sequence[Value]]:
    """The region of a node and the views around it, and the values that it reads."""
    inputs: dict[Value, Value] = {}
    nodes: list[Node] = []
    operands_inside = []
    for number, operand in enumerate(operands):
        source = operand.source
        value = inputs.setdefault(source, Value(source.type, source.name))
        for each in operand.nodes:
            nodes.append(Node(each.op, [value], f"{each.name}.{number}", each.source))
            value = nodes[-1].output
        operands_inside.append(value)
    nodes.append(Node(node.op, operands_inside, node.name, node.source))
    inside = dict(zip(node.outputs, nodes[-1].outputs, strict=True))
    for each in sorted(written.nodes, key=graph.position.__getitem__):
        view_operands = [inside[value] for value in each.inputs]
        nodes.append(Node(each.op, view_operands, each.name, each.source))
        inside[each.output] = nodes[-1].output
    results = [inside[value] for value in _results(graph, node, written)]
    body = Graph(list(inputs.values()), results, nodes, node.name)
    is_forward = isinstance(node.op, Attention)
    return FusedAttention(body) if is_forward else FusedAttentionGradient(body), list(inputs)


def _results(graph: Graph, node: Node, written: _WrittenResults) -> list[Value]:
    """The values that the region of a node computes."""
    logarithms = node.outputs[1:] if isinstance(node.op, Attention) else ()
    return [*written.ends, *(value for value in logarithms if graph.is_read(value))]


ATTEND = Pass("attend", attend)
"""Runs before ``transpose_products``, which fuses the products of attention that is expanded."""
