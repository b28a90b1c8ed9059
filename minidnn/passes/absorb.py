"""absorb: point-wise operators around a contraction become its prologue and epilogue.

Handles: element-wise nodes that are the only reader of the contraction's result, the residual
add included (epilogue), and element-wise nodes with one tensor operand that only the
contraction reads (prologue).  A node is absorbed if the time that the target predicts for it
inside the contraction is no more than its time outside: that of its memory traffic, or none
if the stack before a prologue computes it for free.  An epilogue that a stack reads is absorbed
at any price.
Refuses: whatever the target refuses (noted with its reason), shapes that change, operands that
depend on the contraction by another path; everything under the strategies "layers" and "cudnn".
"""

from __future__ import annotations

from minidnn.fusion.collapse import UNFUSED
from minidnn.fusion.region import FusedContraction
from minidnn.fusion.stacks import Groups, is_tensor_operand, why_not_fusable
from minidnn.fusion.target import Target
from minidnn.graph.ir import Constant, Graph, Node
from minidnn.graph.operator import Contraction, Elementwise
from minidnn.graph.operators import Concat
from minidnn.graph.types import INT8_DTYPES
from minidnn.passes.contract import contract
from minidnn.passes.infrastructure import Context, Pass


def absorb(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in UNFUSED:
        return graph
    groups = Groups(graph)
    absorbed: dict[Node, None] = {}
    regions = []
    for node in graph.nodes:
        if isinstance(node.op, Contraction):
            after = _epilogue(graph, groups, node, absorbed, context)
            absorbed.update(dict.fromkeys(after))
            before = _prologue(graph, groups, node, absorbed, context)
            absorbed.update(dict.fromkeys(before))
            if before or after:
                regions.append(((*before, node, *after), FusedContraction))
    return contract(graph, regions)


def _epilogue(
    graph: Graph, groups: Groups, contraction: Node, absorbed: dict[Node, None], context: Context
) -> list[Node]:
    """The nodes after a contraction that it absorbs; those ``absorbed`` are in other regions."""
    target = context.target
    chain: list[Node] = []
    last = contraction
    while (node := graph.only_reader(last.output)) is not None:
        if not isinstance(node.op, Elementwise) or node in absorbed:
            break
        if chain and last.output.dtype in INT8_DTYPES:
            break  # it was rounded to integers, with which kernels compute in another way
        reason = target.refuse_epilogue(contraction, node)
        other_tensors = [v for v in node.tensors if v is not last.output]
        if reason is None and not groups.can_merge([contraction, node]):
            reason = "one of its operands depends on the contraction by another path"
        if reason is not None:
            _note(context, contraction, node, reason)
            break
        reads = sum(value.type.bytes for value in other_tensors)
        inside = target.epilogue_seconds(contraction, [*chain, node], reads)
        if chain:
            inside -= target.epilogue_seconds(contraction, chain, 0)
        reader = graph.only_reader(node.output)
        joins_stack = reader is not None and why_not_fusable(reader) is None
        outside = target.seconds(_operations(node), 2 * last.output.type.bytes + reads)
        if not joins_stack and inside > outside:
            _note(context, contraction, node, _price_note(inside, outside))
            break
        if not context.allow(f"{contraction.name} takes {node.name} ({node.op}) after it"):
            break
        groups.merge([contraction, node])
        chain.append(node)
        last = node
    return chain


def _prologue(
    graph: Graph, groups: Groups, contraction: Node, absorbed: dict[Node, None], context: Context
) -> list[Node]:
    """The nodes before a contraction that it absorbs; those ``absorbed`` are in other regions."""
    target = context.target
    chain: list[Node] = []
    value = contraction.inputs[0]
    if contraction.inputs.count(value) > 1:
        return chain  # the input is the weight as well, which no prologue computes
    while (node := value.producer) is not None and node not in absorbed:
        if graph.only_reader(value) is not (chain[0] if chain else contraction):
            break
        if not isinstance(node.op, Elementwise) or not _has_one_tensor(node):
            break
        reason = target.refuse_prologue(contraction, node)
        if reason is None and not groups.can_merge([contraction, node]):
            reason = "it depends on the contraction by another path"
        if reason is not None:
            _note(context, contraction, node, reason)
            break
        inside = target.prologue_seconds(contraction, [node])
        outside = _seconds_before(graph, node, absorbed, target)
        if inside > outside:
            _note(context, contraction, node, _price_note(inside, outside))
            break
        if not context.allow(f"{contraction.name} takes {node.name} ({node.op}) before it"):
            break
        groups.merge([contraction, node])
        chain.insert(0, node)
        value = node.inputs[0]
    return chain


def _seconds_before(graph: Graph, node: Node, absorbed: dict[Node, None], target: Target) -> float:
    """Predicted seconds of a node before a contraction if it is not absorbed."""
    source, value = node.inputs[0], node.output
    producer = source.producer
    is_only_reader = graph.only_reader(source) is node
    if producer is not None and producer not in absorbed and _can_lead_stack(producer):
        if not is_only_reader:
            return value.type.bytes / target.device.bandwidth  # the stack writes one value more
        if not isinstance(producer.op, Elementwise):
            return 0.0  # the stack writes this value instead of its source
    return target.seconds(_operations(node), source.type.bytes + value.type.bytes)


def _operations(node: Node) -> int:
    return node.op.operations(tuple(v.type for v in node.inputs), (node.output.type,))


def _price_note(inside: float, outside: float) -> str:
    return f"{inside * 1e6:.1f} us inside, {outside * 1e6:.1f} us outside"


def _note(context: Context, contraction: Node, node: Node, reason: str) -> None:
    context.notes[node.name] = f"not absorbed into {contraction.name}: {reason}"


def _can_lead_stack(node: Node) -> bool:
    """Whether a stack that begins with this node could compute what follows it for free.

    A Concat could not: it costs nothing only while its operands are written in place.
    """
    return why_not_fusable(node) is None and not isinstance(node.op, Concat)


def _has_one_tensor(node: Node) -> bool:
    tensors = [v for i, v in enumerate(node.inputs) if is_tensor_operand(node, i)]
    return len(tensors) == 1 and not isinstance(tensors[0], Constant)


ABSORB = Pass("absorb", absorb, requires=("simplify", "fold_batch_norm"))
