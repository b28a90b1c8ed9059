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

from collections.abc import Iterator
from math import inf

from minidnn.fusion.collapse import UNFUSED
from minidnn.fusion.region import FusedContraction
from minidnn.fusion.stacks import Groups, is_tensor_operand, why_not_fusable
from minidnn.fusion.target import Proposal, Target
from minidnn.graph.ir import Constant, Node
from minidnn.graph.operator import Contraction, Elementwise
from minidnn.graph.operators import Concat
from minidnn.graph.types import INT8_DTYPES
from minidnn.passes.fuse import fusion


def absorb(groups: Groups, target: Target) -> Iterator[Proposal]:
    """See the module."""
    for node in groups.graph.nodes:
        if isinstance(node.op, Contraction):
            chain = [node]
            yield from _epilogues(groups, chain, target)
            yield from _prologues(groups, node, chain, target)


def _epilogues(groups: Groups, chain: list[Node], target: Target) -> Iterator[Proposal]:
    """Proposes the nodes after a contraction one by one; ``chain``, which begins with it, grows by
    those that it absorbs."""
    graph, contraction = groups.graph, chain[0]
    while (node := graph.only_reader(value := chain[-1].output)) is not None:
        if not isinstance(node.op, Elementwise) or not groups.is_single(node):
            return
        before = chain[1:]
        if before and value.dtype in INT8_DTYPES:
            return  # it was rounded to integers, with which kernels compute in another way
        reads = sum(other.type.bytes for other in node.tensors if other is not value)
        inside = target.epilogue_seconds(contraction, [*before, node], reads)
        if before:
            inside -= target.epilogue_seconds(contraction, before, 0)
        reader = graph.only_reader(node.output)
        joins_stack = reader is not None and why_not_fusable(reader) is None
        outside = target.seconds(_operations(node), 2 * value.type.bytes + reads)
        yield Proposal(
            [*chain, node],
            FusedContraction,
            f"{contraction.name} takes {node.name} ({node.op}) after it",
            node,
            f"not absorbed into {contraction.name}",
            inside,
            inf if joins_stack else outside,
        )
        if not groups.are_one([contraction, node]):
            return
        chain.append(node)


def _prologues(
    groups: Groups, contraction: Node, chain: list[Node], target: Target
) -> Iterator[Proposal]:
    """Proposes the nodes before a contraction one by one; ``chain``, its region, grows by those
    that it absorbs."""
    value = contraction.inputs[0]
    if contraction.inputs.count(value) > 1:
        return  # the input is the weight as well, which no prologue computes
    first = contraction
    while (node := value.producer) is not None and groups.is_single(node):
        if groups.graph.only_reader(value) is not first:
            return
        if not isinstance(node.op, Elementwise) or not _has_one_tensor(node):
            return
        yield Proposal(
            [node, *chain],
            FusedContraction,
            f"{contraction.name} takes {node.name} ({node.op}) before it",
            node,
            f"not absorbed into {contraction.name}",
            target.prologue_seconds(contraction, [node]),
            _seconds_before(groups, node, target),
        )
        if not groups.are_one([contraction, node]):
            return
        chain.insert(0, node)
        first, value = node, node.inputs[0]


def _seconds_before(groups: Groups, node: Node, target: Target) -> float:
    """Predicted seconds of a node before a contraction if it is not absorbed."""
    graph, source, value = groups.graph, node.inputs[0], node.output
    producer = source.producer
    is_only_reader = graph.only_reader(source) is node
    if producer is not None and groups.is_single(producer) and _can_lead_stack(producer):
        if not is_only_reader:
            return value.type.bytes / target.device.bandwidth  # the stack writes one value more
        if not isinstance(producer.op, Elementwise):
            return 0.0  # the stack writes this value instead of its source
    return target.seconds(_operations(node), source.type.bytes + value.type.bytes)


def _operations(node: Node) -> int:
    return node.op.operations(tuple(v.type for v in node.inputs), (node.output.type,))


def _can_lead_stack(node: Node) -> bool:
    """Whether a stack that begins with this node could compute what follows it for free.

    A Concat could not: it costs nothing only while its operands are written in place.
    """
    return why_not_fusable(node) is None and not isinstance(node.op, Concat)


def _has_one_tensor(node: Node) -> bool:
    tensors = [v for i, v in enumerate(node.inputs) if is_tensor_operand(node, i)]
    return len(tensors) == 1 and not isinstance(tensors[0], Constant)


ABSORB = fusion("absorb", absorb, ("simplify", "fold_batch_norm"), unfused=UNFUSED)
