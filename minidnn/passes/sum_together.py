"""Sums over all axes but channels are computed together, with what they are sums of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from minidnn.fusion.collapse import APART
from minidnn.fusion.region import FusedSums, is_sum_of_planes
from minidnn.fusion.stacks import Groups, boundary, why_not_fusable
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Operator
from minidnn.graph.operators import Expand, Reduce, Variance, View
from minidnn.graph.types import FLOATS, TensorType
from minidnn.passes.contract import contract, flat
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.simplify import drop_dead

MOST_TENSORS = 2
"""To read two is no more than to write a value and to read it."""
MOST_SUMS = 4


@dataclass
class _Sweep:
    """Sums that are computed together."""

    sums: list[Node] = field(default_factory=list)
    #: The tensors that are read, and the point-wise nodes that are computed.
    tensors: dict[Value, None] = field(default_factory=dict)
    nodes: dict[Node, None] = field(default_factory=dict)

    def operands(self, *others: Node) -> dict[Value, None]:
        """The values that are read, vectors included, beside other sums of the sweep."""
        made = {value for node in (*self.nodes, *self.sums, *others) for value in node.outputs}
        read = dict.fromkeys(self.tensors)
        for node in (*self.nodes, *self.sums):
            read.update((v, None) for v in node.inputs if v not in made)
        return read


def sum_together(graph: Graph, context: Context) -> Graph:
    """Sums over all axes but channels become regions that read their operands once.

    Batch normalization in training is made of such sums, forwards and backwards.

    Handles: sums, means and variances over all axes but that of channels, and, where the target
    adds planes up, sums and means of these.  The point-wise operators before them are computed
    again inside, as long as a region reads few tensors for it: then no value is stored for a sum
    alone.  Sums that read the same tensors, or some of them, and do not depend on each other become
    one region, and so do a mean and the variance around it.  Operands with one element for each
    channel are free, and so are those with one for each plane where planes are added up.
    Refuses: whatever the target refuses; everything but the sum itself under strategies that leave
    layers apart.
    """
    first = {sweep.sums[0]: sweep for sweep in _sweeps(graph, context)}
    taken: set[Node] = set()
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        sweep = first.get(node)
        names = ", ".join(each.name for each in sweep.sums) if sweep else ""
        if sweep is not None and context.allow(f"sum {names} in one sweep"):
            taken.update(sweep.sums)
            _add(rewriter, sweep)
        elif node not in taken:
            rewriter.keep(node)
    summed = rewriter.finish()
    return graph if summed is graph else drop_dead(summed, context)


def _sweeps(graph: Graph, context: Context) -> list[_Sweep]:
    planes = context.target.adds_planes
    reach = {} if context.strategy in APART else _reach(graph, planes)
    sweeps: list[_Sweep] = []
    for node in graph.nodes:
        if not _is_sum(node, planes) or context.target.refuse_sums(node) is not None:
            continue
        one = _Sweep([node], *reach.get(node.inputs[0], ({node.inputs[0]: None}, {})))
        for sweep in reversed(sweeps) if reach else ():
            if _fits(graph, sweep, one):
                sweep.sums.append(node)
                sweep.tensors |= one.tensors
                sweep.nodes |= one.nodes
                break
        else:
            sweeps.append(one)
    return sweeps


def _fits(graph: Graph, sweep: _Sweep, one: _Sweep) -> bool:
    """Whether a sum can be computed where a sweep is, by reading little more."""
    if len(sweep.sums) == MOST_SUMS or sweep.sums[0].inputs[0].shape != one.sums[0].inputs[0].shape:
        return False
    if is_sum_of_planes(sweep.sums[0]) != is_sum_of_planes(one.sums[0]):
        return False
    if sweep.tensors.keys().isdisjoint(one.tensors):
        return False
    if len(sweep.tensors | one.tensors) > max(MOST_TENSORS, len(sweep.tensors)):
        return False
    beside = [each for each in sweep.sums if _is_mean_of(each, one.sums[0])]
    return _are_there(graph, one.operands(*beside), graph.position[sweep.sums[0]])


def _is_mean_of(node: Node, variance: Node) -> bool:
    """Whether a sum is the mean that a variance is around, and of the same values."""
    if not isinstance(variance.op, Variance) or not isinstance(node.op, Reduce):
        return False
    return node.op.how == "mean" and list(variance.inputs) == [node.inputs[0], node.output]


def _are_there(graph: Graph, values: Iterable[Value], position: int) -> bool:
    made = (value.producer for value in values)
    return all(node is None or graph.position[node] < position for node in made)


_Reach = tuple[dict[Value, None], dict[Node, None]]


def _reach(graph: Graph, planes: bool) -> dict[Value, _Reach]:
    """For values that point-wise operators make: the tensors of which, and the nodes by which, they
    are computed in a sweep."""
    found: dict[Value, _Reach] = {}
    for node in graph.nodes:
        if not is_pointwise(node, planes):
            continue
        parts: dict[Value, _Reach] = {}
        inner: dict[Node, None] = {}
        for value in node.inputs:
            if (spread := _spread(value)) is not None:
                inner[spread] = None
            elif value.shape == node.output.shape:
                parts[value] = found.get(value, ({value: None}, {}))
        # What is stored anyway need not be computed, if that takes more.
        for value in sorted(parts, key=lambda each: -len(parts[each][0])):
            if not _is_little(_tensors(parts), node.output) and _is_stored(graph, value):
                parts[value] = ({value: None}, {})
        tensors = _tensors(parts)
        if tensors and _is_little(tensors, node.output):
            for _, nodes in parts.values():
                inner = nodes | inner
            found[node.output] = (tensors, {**inner, node: None})
            if len(tensors) > 1 and _is_stored(graph, node.output):
                found[node.output] = ({node.output: None}, {})
    return found


def _tensors(parts: Mapping[Value, _Reach]) -> dict[Value, None]:
    return {tensor: None for tensors, _ in parts.values() for tensor in tensors}


def _is_little(tensors: Collection[Value], value: Value) -> bool:
    """Whether to read tensors is no more than to write a value and to read it."""
    read = sum(tensor.type.bytes for tensor in tensors)
    return len(tensors) <= MOST_TENSORS or read <= 2 * value.type.bytes


def _is_stored(graph: Graph, value: Value) -> bool:
    """Whether something else than point-wise operators and sums reads a value."""
    others = (
        node
        for node in graph.readers[value]
        if not isinstance(node.op, (Elementwise, Reduce, Variance))
    )
    return value in graph.results or next(others, None) is not None


def _is_sum(node: Node, planes: bool) -> bool:
    op, x = node.op, node.inputs[0] if node.inputs else None
    if x is None or x.dtype not in FLOATS or isinstance(x, Constant) or x.type.size == 0:
        return False
    if planes and x.type.rank == 4 and is_sum_of_planes(node):
        return True
    if isinstance(op, Reduce):
        others = tuple(d for d in range(x.type.rank) if d != 1)
        if op.how not in ("sum", "mean") or op.dims != others:
            return False
    return isinstance(op, (Reduce, Variance)) and x.type.rank in (2, 4)


def is_pointwise(node: Node, planes: bool = False) -> bool:
    """Whether an operator makes a tensor of tensors of its shape and of vectors over channels, or,
    with ``planes``, of one number for each plane."""
    if not isinstance(node.op, Elementwise):
        return False
    out = node.output
    if out.type.rank not in (2, 4) or any(v.dtype not in FLOATS for v in (*node.inputs, out)):
        return False
    tensors = node.inputs[: len(node.inputs) - node.op.channel_count]
    return all(
        (value.shape == out.shape and not isinstance(value, Constant))
        or _is_vector(value.type, out.shape)
        or (planes and value.shape == (*out.shape[:2], *(1 for _ in out.shape[2:])))
        for value in tensors
    )


def _is_vector(type: TensorType, shape: tuple[int, ...]) -> bool:
    """Whether there is one element for each channel of a tensor."""
    return type.shape == (1, shape[1], *(1 for _ in shape[2:]))


def _spread(value: Value) -> Node | None:
    """What repeats a vector over channels to make a value, if that is how it is made."""
    node = value.producer
    if node is None or not isinstance(node.op, Expand):
        return None
    return node if _is_vector(node.inputs[0].type, value.shape) else None


def _add(rewriter: Rewriter, sweep: _Sweep) -> None:
    """Adds a region on copies of its nodes, as others may read what they make, too."""
    outside = [value for value in sweep.operands() if not isinstance(value, Constant)]
    inside = {value: Value(value.type, value.name) for value in outside}
    nodes: list[Node] = []

    def copy(node: Node, op: Operator) -> None:
        new = Node(op, [inside.get(v, v) for v in node.inputs], node.name, node.source)
        nodes.append(new)
        inside[node.output] = new.output

    graph = rewriter.graph
    for node in sorted(sweep.nodes, key=graph.position.__getitem__):
        copy(node, node.op)
    for node in sweep.sums:
        copy(node, replace(node.op, keepdim=False) if isinstance(node.op, Reduce) else node.op)
    body = Graph(
        [inside[value] for value in outside],
        [inside[node.output] for node in sweep.sums],
        nodes,
        sweep.sums[-1].name,
    )
    source = ", ".join(dict.fromkeys(node.source for node in (*sweep.nodes, *sweep.sums)))
    name = sweep.sums[0].name
    region = rewriter.add(FusedSums(body), [rewriter.value(v) for v in outside], name, source)
    for node, made in zip(sweep.sums, region.outputs, strict=True):
        if made.type == node.output.type:
            rewriter.replace(node.output, made)
            continue
        view = View(node.output.shape)
        name = rewriter.fresh(f"{node.name}.wide")
        rewriter.replace(node.output, rewriter.add(view, [made], name, node.source).output)


SUM_TOGETHER = Pass("sum_together", sum_together, requires=("simplify",))


_MOST_SWEPT = 6
"""That a sweep reads and writes."""


def store_summed(graph: Graph, context: Context) -> Graph:
    """What is stored and added up is computed where it is added up.

    In training this is the gradient of a residual sum: the normalization before it adds it up, and
    others read it, too.

    Handles: values that sweeps of sums read, made by point-wise operators of values that are stored
    in any case; the sweep computes them and stores them on the way, so that it need not read them.
    All sweeps over such a value that can be one become one.
    Refuses: values that what reads them could be computed with; whatever would need more tensors
    than a thread holds at a time; everything where the target's sums store nothing, and under
    strategies that leave layers apart.
    """
    if context.strategy in APART or not context.target.stores_summed:
        return graph
    groups = Groups(graph)
    stored: set[Value] = set()
    found = []
    for node in graph.nodes:
        if not isinstance(node.op, FusedSums) or len(groups.nodes_of(node)) > 1:
            continue
        for value in node.inputs:
            if value.shape != node.op.shape or not (nodes := _together(groups, value, stored)):
                continue
            if not context.allow(f"compute {value.name} where it is added up"):
                break
            groups.merge(nodes)
            stored.add(value)
            found.append((nodes, lambda body: FusedSums(flat(body))))
            break
    return contract(graph, found)


def _together(groups: Groups, value: Value, stored: set[Value]) -> list[Node]:
    """What makes a value and the sweeps over it; nothing if they had better stay apart."""
    graph = groups.graph
    nodes = _made_by(graph, value, stored)
    if not nodes or any(len(groups.nodes_of(node)) > 1 for node in nodes):
        return []
    added = False
    kinds: set[bool] = set()  # a sweep adds up planes or channels
    for reader in graph.readers[value]:
        if _adds(reader, value) and len(groups.nodes_of(reader)) == 1:
            assert isinstance(reader.op, FusedSums)
            if {reader.op.by_plane} | kinds != {reader.op.by_plane}:
                continue
            wider = [*nodes, reader]
            if _count_of_tensors(graph, wider, value) <= _MOST_SWEPT and groups.can_merge(wider):
                nodes, added = wider, True
                kinds.add(reader.op.by_plane)
    sums = {node for node in nodes if isinstance(node.op, FusedSums)}
    behind = 0
    for each in sums:
        behind |= groups.of(each).after
    others = [reader for reader in graph.readers[value] if reader not in sums]
    is_read = bool(others) or value in graph.results
    if not added or not is_read or not all(_is_apart(graph, other, behind) for other in others):
        return []
    return sorted(nodes, key=graph.position.__getitem__)


def _made_by(graph: Graph, value: Value, stored: set[Value]) -> list[Node]:
    """The point-wise nodes that make a value of such as are stored in any case."""
    found: dict[Node, None] = {}
    pending = [value]
    while pending:
        node = pending.pop().producer
        if node is None or not is_pointwise(node):
            return []
        found[node] = None
        for operand in node.inputs:
            if operand.shape == value.shape and not _is_stored_anyway(graph, operand, stored):
                pending.append(operand)
    inside = (node.output for node in found if node.output is not value)
    loose = any(reader not in found for each in inside for reader in graph.readers[each])
    return [] if loose else list(found)


def _is_stored_anyway(graph: Graph, value: Value, stored: set[Value]) -> bool:
    if value in stored or value in graph.results or value.producer not in graph.position:
        return True
    nodes = (value.producer, *graph.readers[value])
    return any(node is not None and why_not_fusable(node) for node in nodes)


def _is_apart(graph: Graph, node: Node | None, behind: int) -> bool:
    """Whether a node, or what alone reads its result, cannot be computed before the sums are."""
    while node is not None:
        if why_not_fusable(node) or behind >> graph.position[node] & 1:
            return True
        node = graph.only_reader(node.output)
    return False


def _adds(node: Node, value: Value) -> bool:
    return isinstance(node.op, FusedSums) and node.op.shape == value.shape


def _count_of_tensors(graph: Graph, nodes: list[Node], value: Value) -> int:
    read, _ = boundary(graph, sorted(nodes, key=graph.position.__getitem__))
    return 1 + sum(each.shape == value.shape for each in read)


STORE_SUMMED = Pass("store_summed", store_summed, requires=("sum_together",))
