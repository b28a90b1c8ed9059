"""Sums over all axes but channels become regions that sweep over their operands once.

``sum_together`` groups sums over the same tensors with the point-wise operators before them;
``store_summed`` lets such a sweep also store a value that it computes.  Both make regions of the
class ``FusedSums``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from minidnn.fusion.collapse import NO_STACKS
from minidnn.fusion.region import FusedSums, is_spatial_sum, region_of_sum
from minidnn.fusion.stacks import Groups, boundary, why_not_fusable
from minidnn.fusion.target import Proposal, Target
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Operator
from minidnn.graph.operators import Expand, Reduce, Variance, View
from minidnn.graph.types import FLOATS, TensorType
from minidnn.passes.fuse import flat, fusion
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.simplify import drop_dead

MOST_TENSORS = 2
"""Tensors that a sweep reads: two are no more traffic than writing a value and reading it back."""
MOST_SUMS = 4
"""Reductions of one sweep."""


@dataclass
class _Sweep:
    """Sums, means and variances that one region computes."""

    sums: list[Node] = field(default_factory=list)
    #: The tensors that the sweep reads, and the point-wise nodes that it computes from them.
    tensors: dict[Value, None] = field(default_factory=dict)
    nodes: dict[Node, None] = field(default_factory=dict)

    def operands(self, *others: Node) -> dict[Value, None]:
        """The values that the sweep reads, vectors included, other than results of its own nodes
        and of ``others``."""
        computed = {value for node in (*self.nodes, *self.sums, *others) for value in node.outputs}
        read = dict.fromkeys(self.tensors)
        for node in (*self.nodes, *self.sums):
            read.update((v, None) for v in node.inputs if v not in computed)
        return read


def sum_together(graph: Graph, context: Context) -> Graph:
    """Sums over all axes but channels become regions that read their operands once.

    Batch normalization in training computes such sums in the forward and in the backward pass.

    Handles: sums, means and variances over all axes but channels, and, where the target reduces
    planes, sums and means of planes.  The region computes the point-wise operators before them
    again, as long as it reads few tensors for it: then no value is stored for a sum alone.  Sums
    that read the same tensors, or some of them, and do not depend on each other become one region,
    and so do a mean and the variance around it.  Operands with one element for each channel don't
    count as reads, nor do those with one for each plane where planes are reduced.
    Refuses: whatever the target refuses; under strategies that fuse no stacks everything but a
    region of one sum.
    """
    first = {sweep.sums[0]: sweep for sweep in _sweeps(graph, context)}
    in_sweeps: set[Node] = set()
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        sweep = first.get(node)
        names = ", ".join(each.name for each in sweep.sums) if sweep else ""
        if sweep is not None and context.allow(f"sum {names} in one sweep"):
            in_sweeps.update(sweep.sums)
            _add(rewriter, sweep)
        elif node not in in_sweeps:
            rewriter.keep(node)
    summed = rewriter.finish()
    return graph if summed is graph else drop_dead(summed, context)


def _sweeps(graph: Graph, context: Context) -> list[_Sweep]:
    """The sweeps of a graph: each sum is added to the latest sweep that fits, or begins a new
    one."""
    planes = context.target.fuses_spatial_sums
    fuses = context.strategy not in NO_STACKS
    reach = _reach(graph, planes) if fuses else {}
    sweeps: list[_Sweep] = []
    for node in graph.nodes:
        if not _is_sum(node, planes) or context.target.refuse_fusion(region_of_sum(node)):
            continue
        new = _Sweep([node], *reach.get(node.inputs[0], ({node.inputs[0]: None}, {})))
        for sweep in reversed(sweeps) if fuses else ():
            if _fits(graph, sweep, new):
                sweep.sums.append(node)
                sweep.tensors |= new.tensors
                sweep.nodes |= new.nodes
                break
        else:
            sweeps.append(new)
    return sweeps


def _fits(graph: Graph, sweep: _Sweep, new: _Sweep) -> bool:
    """Whether a sweep can compute the sum of the sweep ``new`` as well: they share tensors, the
    operands are computed before the sweep, and few tensors are read in all."""
    if len(sweep.sums) == MOST_SUMS or sweep.sums[0].inputs[0].shape != new.sums[0].inputs[0].shape:
        return False
    if is_spatial_sum(sweep.sums[0]) != is_spatial_sum(new.sums[0]):
        return False
    if sweep.tensors.keys().isdisjoint(new.tensors):
        return False
    if len(sweep.tensors | new.tensors) > max(MOST_TENSORS, len(sweep.tensors)):
        return False
    means = [each for each in sweep.sums if _is_mean_of(each, new.sums[0])]
    return _are_computed_before(graph, new.operands(*means), graph.position[sweep.sums[0]])


def _is_mean_of(node: Node, variance: Node) -> bool:
    """Whether a sum is the mean that a variance is around, and of the same values."""
    if not isinstance(variance.op, Variance) or not isinstance(node.op, Reduce):
        return False
    return node.op.how == "mean" and list(variance.inputs) == [node.inputs[0], node.output]


def _are_computed_before(graph: Graph, values: Iterable[Value], position: int) -> bool:
    producers = (value.producer for value in values)
    return all(node is None or graph.position[node] < position for node in producers)


_Reach = tuple[dict[Value, None], dict[Node, None]]


def _reach(graph: Graph, planes: bool) -> dict[Value, _Reach]:
    """For results of point-wise operators: the tensors that a sweep reads to compute them, and the
    nodes by which it does."""
    reach: dict[Value, _Reach] = {}
    for node in graph.nodes:
        if not is_pointwise(node, planes):
            continue
        operands: dict[Value, _Reach] = {}
        nodes_inside: dict[Node, None] = {}
        for value in node.inputs:
            if (spread := _spread(value)) is not None:
                nodes_inside[spread] = None
            elif value.shape == node.output.shape:
                operands[value] = reach.get(value, ({value: None}, {}))
        # A value that is stored anyway is read if computing it would read more.
        for value in sorted(operands, key=lambda each: -len(operands[each][0])):
            if not _is_cheap_to_read(_tensors(operands), node.output) and _is_stored(graph, value):
                operands[value] = ({value: None}, {})
        tensors = _tensors(operands)
        if tensors and _is_cheap_to_read(tensors, node.output):
            for _, nodes in operands.values():
                nodes_inside = nodes | nodes_inside
            reach[node.output] = (tensors, {**nodes_inside, node: None})
            if len(tensors) > 1 and _is_stored(graph, node.output):
                reach[node.output] = ({node.output: None}, {})
    return reach


def _tensors(parts: Mapping[Value, _Reach]) -> dict[Value, None]:
    return {tensor: None for tensors, _ in parts.values() for tensor in tensors}


def _is_cheap_to_read(tensors: Collection[Value], value: Value) -> bool:
    """Whether reading these tensors is no more traffic than writing a value and reading it back."""
    read = sum(tensor.type.bytes for tensor in tensors)
    return len(tensors) <= MOST_TENSORS or read <= 2 * value.type.bytes


def _is_stored(graph: Graph, value: Value) -> bool:
    """Whether a value is stored anyway: a node other than point-wise operators and sums reads it,
    or it is a result of the graph."""
    others = (
        node
        for node in graph.readers[value]
        if not isinstance(node.op, (Elementwise, Reduce, Variance))
    )
    return value in graph.results or next(others, None) is not None


def _is_sum(node: Node, planes: bool) -> bool:
    """Whether a node is a sum, mean or variance that a sweep computes: over all axes but channels,
    or over planes with ``planes``."""
    op, x = node.op, node.inputs[0] if node.inputs else None
    if x is None or x.dtype not in FLOATS or isinstance(x, Constant) or x.type.size == 0:
        return False
    if planes and x.type.rank == 4 and is_spatial_sum(node):
        return True
    if isinstance(op, Reduce):
        others = tuple(d for d in range(x.type.rank) if d != 1)
        if op.how not in ("sum", "mean") or op.dims != others:
            return False
    return isinstance(op, (Reduce, Variance)) and x.type.rank in (2, 4)


def is_pointwise(node: Node, planes: bool = False) -> bool:
    """Whether a node is element-wise on tensors of its result's shape and on vectors over channels,
    or, with ``planes``, on values with one number for each plane."""
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
    """The node that broadcasts a vector over channels to this value, if there is one."""
    node = value.producer
    if node is None or not isinstance(node.op, Expand):
        return None
    return node if _is_vector(node.inputs[0].type, value.shape) else None


def _add(rewriter: Rewriter, sweep: _Sweep) -> None:
    """Adds the region of a sweep, on copies of its nodes: nodes outside may read the same values.
    Results that keep their reduced axes are views of the region's."""
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
    for node, result in zip(sweep.sums, region.outputs, strict=True):
        if result.type == node.output.type:
            rewriter.replace(node.output, result)
            continue
        view = View(node.output.shape)
        name = rewriter.fresh(f"{node.name}.wide")
        rewriter.replace(node.output, rewriter.add(view, [result], name, node.source).output)


SUM_TOGETHER = Pass("sum_together", sum_together, requires=("simplify",))


_MOST_SWEPT = 6
"""Tensors that a sweep of ``store_summed`` reads and writes."""


def store_summed(groups: Groups, target: Target) -> Iterator[Proposal]:
    """A value that is both stored and summed is computed in the sweep that sums it.

    In training this is the gradient of a residual sum: the backward pass of the normalization
    before it sums it, and other nodes read it as well.

    Handles: values that sweeps of sums read, and that point-wise operators compute from values that
    are stored in any case; the sweep computes and stores such a value, so that it need not read it.
    All sweeps over the value that can be merged become one.
    Refuses: values whose readers could be fused with them; regions that would need more tensors
    than a thread holds at a time; whatever the target refuses; everything under strategies that
    fuse no stacks.
    """
    stored: set[Value] = set()
    for node in groups.graph.nodes:
        if not isinstance(node.op, FusedSums) or not groups.is_single(node):
            continue
        for value in node.inputs:
            if value.shape != node.op.shape or not (nodes := _together(groups, value, stored)):
                continue
            rewrite = f"compute {value.name} where it is added up"
            yield Proposal(nodes, lambda body: FusedSums(flat(body)), rewrite, node)
            if groups.are_one(nodes):
                stored.add(value)
                break


def _together(groups: Groups, value: Value, stored: set[Value]) -> list[Node]:
    """The nodes of a region that computes and sums a value: its producers and the sweeps over it;
    none if the region would save nothing."""
    graph = groups.graph
    nodes = _made_by(graph, value, stored)
    if not nodes or not all(map(groups.is_single, nodes)):
        return []
    added = False
    kinds: set[bool] = set()  # a sweep reduces planes or channels
    for reader in graph.readers[value]:
        if _adds(reader, value) and groups.is_single(reader):
            assert isinstance(reader.op, FusedSums)
            if {reader.op.by_plane} | kinds != {reader.op.by_plane}:
                continue
            wider = [*nodes, reader]
            if _count_of_tensors(graph, wider, value) <= _MOST_SWEPT and groups.can_merge(wider):
                nodes, added = wider, True
                kinds.add(reader.op.by_plane)
    sums = {node for node in nodes if isinstance(node.op, FusedSums)}
    after_sums = 0
    for each in sums:
        after_sums |= groups.of(each).after
    others = [reader for reader in graph.readers[value] if reader not in sums]
    is_read = bool(others) or value in graph.results
    if (
        not added
        or not is_read
        or not all(_is_not_fusable_before(graph, other, after_sums) for other in others)
    ):
        return []
    return sorted(nodes, key=graph.position.__getitem__)


def _made_by(graph: Graph, value: Value, stored: set[Value]) -> list[Node]:
    """The point-wise nodes that compute a value from values that are stored in any case; none if
    another node is needed, or if a value in between is read elsewhere."""
    nodes: dict[Node, None] = {}
    pending = [value]
    while pending:
        node = pending.pop().producer
        if node is None or not is_pointwise(node):
            return []
        nodes[node] = None
        for operand in node.inputs:
            if operand.shape == value.shape and not _is_stored_anyway(graph, operand, stored):
                pending.append(operand)
    inside = (node.output for node in nodes if node.output is not value)
    read_elsewhere = any(reader not in nodes for each in inside for reader in graph.readers[each])
    return [] if read_elsewhere else list(nodes)


def _is_stored_anyway(graph: Graph, value: Value, stored: set[Value]) -> bool:
    if value in stored or value in graph.results or value.producer not in graph.position:
        return True
    nodes = (value.producer, *graph.readers[value])
    return any(node is not None and why_not_fusable(node) for node in nodes)


def _is_not_fusable_before(graph: Graph, node: Node | None, after_sums: int) -> bool:
    """Whether a reader of the value cannot be fused with its producers anyway: it, or the chain of
    nodes that alone read its result, ends at a node that no stack takes or that needs the sums."""
    while node is not None:
        if why_not_fusable(node) or after_sums >> graph.position[node] & 1:
            return True
        node = graph.only_reader(node.output)
    return False


def _adds(node: Node, value: Value) -> bool:
    return isinstance(node.op, FusedSums) and node.op.shape == value.shape


def _count_of_tensors(graph: Graph, nodes: list[Node], value: Value) -> int:
    """The number of tensors of a value's shape that a sweep reads, and one that it writes."""
    read, _ = boundary(graph, sorted(nodes, key=graph.position.__getitem__))
    return 1 + sum(each.shape == value.shape for each in read)


STORE_SUMMED = fusion("store_summed", store_summed, ("sum_together",))
