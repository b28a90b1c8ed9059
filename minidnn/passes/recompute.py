"""recompute: rematerialization; values that are read much later are computed again, not kept.

In training these are values of the forward pass that the backward pass reads: gradient
checkpointing, for graphs of any kind.  A node is copied as it is, region and layouts included, to
just before the next read of its results, so that it gives the same bits.

Handles: graphs under a ``memory_limit``, as long as they need more.  Among the values that are live
but unused at peak memory, the pass chooses the one that frees the most bytes for each second that
computing it again is predicted to take: element-wise regions and normalizations come before
convolutions.  The operands of the copied node are kept for it, or computed again as well if they
are no longer live.
Refuses: graph inputs and results, values that are views of others (as operands of concatenations),
and copies that would not lower the peak.  The graph may need more than the limit in the end; the
device then says how much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from minidnn.fusion.region import Region, constants
from minidnn.fusion.target import Target
from minidnn.graph.ir import Graph, Node, State, Value, fresh
from minidnn.graph.operator import Contraction
from minidnn.graph.operators import SumOverRanks
from minidnn.memory import Annotations, BufferView, plan_groups, plan_memory, storage_roots, touched
from minidnn.passes.in_place import update_in_place
from minidnn.passes.infrastructure import Context, Pass

MOST_NODES = 40
"""A value that needs more nodes than that to be computed again is kept."""


def recompute(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.memory_limit is None:
        return graph
    use, prices = _Use(graph, context.annotations), _Prices(context.target)
    while not _fits(use, context):
        better = next(_better(use, context, prices), None)
        if better is None or not context.allow(better.description):
            break
        use = better.use
        context.annotations = use.annotations
    return use.graph


def stored_bytes(graph: Graph) -> int:
    """Bytes of weights and states, which are in memory all the time."""
    return sum(value.type.bytes for value in (*constants(graph), *graph.states))


def needed_bytes(graph: Graph, context: Context) -> int:
    """Bytes of weights, states, and the arenas of all other values, by the graph's annotations; the
    arena of a group that runs image by image counts once for each worker."""
    updated, annotations = update_in_place(graph, context), context.annotations
    worker_bytes = plan_groups(updated, annotations).bytes * context.target.device.workers
    return stored_bytes(updated) + plan_memory(updated, annotations).bytes + worker_bytes


def _fits(use: _Use, context: Context) -> bool:
    """Whether a graph needs no more memory than the limit."""
    assert context.memory_limit is not None
    if stored_bytes(use.graph) + use.peak > context.memory_limit:
        return False  # no arena is smaller than the most bytes in use
    return needed_bytes(use.graph, context) <= context.memory_limit


class _Use:
    """The memory that is live at each node of a graph.

    Attributes:
        roots: the value that owns the storage of each value.
        touched: for each storage, the positions of the first and the last node that use it.
        peak: the most bytes that are live at once.
        at: the first position at which they are.
        score: the measure that a copy has to lower: the peak, and at how many nodes it is reached.
    """

    def __init__(self, graph: Graph, annotations: Annotations) -> None:
        self.graph, self.annotations = graph, annotations
        self.roots = storage_roots(graph, annotations)
        self.touched = touched(graph, annotations, self.roots)
        changes = np.zeros(len(graph.nodes) + 1, np.int64)
        for root, (first, last) in self.touched.items():
            changes[first] += self.bytes(root)
            changes[last + 1] -= self.bytes(root)
        bytes = changes.cumsum()
        self.peak, self.at = int(bytes.max()), int(bytes.argmax())
        self.score = self.peak, int((bytes == self.peak).sum())

    def bytes(self, root: Value) -> int:
        return self.annotations.storage_bytes(root)


@dataclass(frozen=True)
class _Candidate:
    """Nodes to copy before the node at position ``before``: the copies free ``bytes`` at the peak,
    and take ``seconds`` in each run."""

    nodes: tuple[Node, ...]
    before: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class _Found:
    """A graph with a lower peak, and the text of the rewrite."""

    use: _Use
    description: str


class _Prices:
    """Predicted seconds of nodes, cached: most nodes are the same in all graphs of the search."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._seconds: dict[Node, float] = {}

    def seconds(self, node: Node) -> float:
        found = self._seconds.get(node)
        if found is None:
            moved = sum(value.type.bytes for value in (*node.tensors, *node.outputs))
            found = self._target.seconds(_operations(node), moved, _contracts(node))
            self._seconds[node] = found
        return found


def _better(use: _Use, context: Context, prices: _Prices) -> Iterator[_Found]:
    """Graphs with a lower peak, of the candidates that free the most bytes a second first."""
    candidates = sorted(_candidates(use, context, prices), key=lambda c: -c.bytes / c.seconds)
    for each in candidates:
        copied = _Use(*_with_copies(use, each))
        if copied.score < use.score:
            names = ", ".join(node.name for node in each.nodes)
            operations = sum(_operations(node) for node in each.nodes)
            freed = f"frees {each.bytes} bytes for {operations} operations"
            yield _Found(copied, f"compute {names} again: {freed}")


def _candidates(use: _Use, context: Context, prices: _Prices) -> Iterator[_Candidate]:
    """For each node whose results are live but unused at the peak: copying it alone, and copying it
    with the producers of operands that are gone by then."""
    graph = use.graph
    not_copied = {
        use.roots.get(value) for value in (*graph.results, *context.annotations.placements)
    }
    unused: dict[Node, list[Value]] = {}
    for root, (first, last) in use.touched.items():
        node = root.producer
        if first < use.at < last and node is not None and root not in not_copied:
            unused.setdefault(node, []).append(root)
    for node, roots in unused.items():
        if isinstance(node.op, SumOverRanks):
            continue
        if not_copied.intersection(use.roots[value] for value in node.outputs):
            continue
        begins = [_next(use, root) for root in roots]
        freed = [root for root, begin in zip(roots, begins, strict=True) if begin is not None]
        before = min((begin for begin in begins if begin is not None), default=None)
        if before is None:
            continue
        gained = sum(map(use.bytes, freed))
        nodes_alone = _views(use, node)
        extended = sum(map(use.bytes, _freed_values(use, node, use.at)))
        if gained > extended:
            yield _candidate(nodes_alone, before, gained - extended, context, prices)
        if _freed_values(use, node, before):
            nodes = _with_dead_producers(use, node, before, not_copied)
            if nodes is not None:
                yield _candidate(nodes, before, gained, context, prices)


def _candidate(
    nodes: Sequence[Node], before: int, bytes: int, context: Context, prices: _Prices
) -> _Candidate:
    seconds = 0.0
    for node in nodes:
        if not context.annotations.is_view(node):
            seconds += prices.seconds(node)
    return _Candidate(tuple(nodes), before, bytes, seconds)


def _contracts(node: Node) -> bool:
    inner = node.op.body.nodes if isinstance(node.op, Region) else (node,)
    return any(isinstance(each.op, Contraction) for each in inner)


def _operations(node: Node) -> int:
    inputs, outputs = (tuple(v.type for v in values) for values in (node.inputs, node.outputs))
    return node.op.cost(inputs, outputs).operations


def _next(use: _Use, root: Value) -> int | None:
    """The position of the first node after the peak that reads a storage; None if there is none, or
    if the node at the peak reads it, too."""
    graph = use.graph
    readers = (reader for value in _inside(use, root) for reader in graph.readers[value])
    positions = [graph.position[reader] for reader in readers]
    later = [position for position in positions if position > use.at]
    return min(later) if later and use.at not in positions else None


def _inside(use: _Use, root: Value) -> list[Value]:
    """A value, and all views of it."""
    values = [root]
    for value in values:
        for reader in use.graph.readers[value]:
            if use.annotations.is_view(reader):
                values += reader.outputs
    return values


def _views(use: _Use, node: Node) -> list[Node]:
    """A node, and the nodes up to the peak that make views of its results."""
    graph = use.graph
    nodes = {node: None}
    for output in node.outputs:
        for value in _inside(use, output)[1:]:
            assert value.producer is not None
            if graph.position[value.producer] <= use.at:
                nodes[value.producer] = None
    return sorted(nodes, key=graph.position.__getitem__)


def _freed_values(use: _Use, node: Node, position: int) -> list[Value]:
    """The storages that a node reads and that are no longer live at a position."""
    roots = dict.fromkeys(use.roots[value] for value in node.tensors)
    return [root for root in roots if root in use.touched and use.touched[root][1] < position]


def _with_dead_producers(
    use: _Use, node: Node, position: int, fixed: set[Value | None]
) -> list[Node] | None:
    """A node, its views, and all nodes that must be copied with it to a position; None if these are
    too many, or one cannot be copied."""
    nodes: dict[Node, None] = dict.fromkeys(_views(use, node))
    pending = [node]
    while pending:
        for root in _freed_values(use, pending.pop(), position):
            producer = root.producer
            if producer is None or root in fixed or isinstance(root, State):
                return None
            if isinstance(producer.op, SumOverRanks):  # all ranks would have to copy it
                return None
            if producer not in nodes:
                nodes |= dict.fromkeys(_views(use, producer))
                pending.append(producer)
        if len(nodes) > MOST_NODES:
            return None
    return sorted(nodes, key=use.graph.position.__getitem__)


def _with_copies(use: _Use, candidate: _Candidate) -> tuple[Graph, Annotations]:
    """The graph with the candidate's nodes copied, and its annotations; later nodes read the
    results of the copies."""
    graph, annotations = use.graph, use.annotations
    current: dict[Value, Value] = {}
    twins: dict[Value, list[Value]] = {}
    names = {node.name for node in graph.nodes}
    nodes: list[Node] = []

    def add(node: Node, name: str) -> None:
        inputs = tuple(current.get(value, value) for value in node.inputs)
        new = node if name == node.name and inputs == node.inputs else node.on(inputs, name)
        nodes.append(new)
        for old, value in zip(node.outputs, new.outputs, strict=True):
            twins.setdefault(old, []).append(value)
            if value is not old:
                current[old] = value

    for i, node in enumerate(graph.nodes):
        if i == candidate.before:
            for each in candidate.nodes:
                name = fresh(f"{each.name}.again", names)
                add(each, name)
        add(node, node.name)
    rebuild_nodes = Graph(
        graph.inputs,
        [current.get(value, value) for value in graph.outputs],
        nodes,
        graph.name,
        graph.output_names,
        updates={state: current.get(value, value) for state, value in graph.updates.items()},
    )
    return rebuild_nodes, _moved(annotations, twins)


def _moved(annotations: Annotations, twins: dict[Value, list[Value]]) -> Annotations:
    """The annotations for a graph in which ``twins`` stand for each value: itself and copies."""
    layouts = {
        twin: layout
        for value, layout in annotations.layouts.items()
        for twin in twins.get(value, [value])
    }
    placements = {
        twin: BufferView(twins.get(place.buffer, [place.buffer])[0], place.channel)
        for value, place in annotations.placements.items()
        for twin in twins.get(value, [value])
    }
    return replace(annotations, layouts=layouts, placements=placements)


RECOMPUTE = Pass("recompute", recompute, requires=("schedule",))
