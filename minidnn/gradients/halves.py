"""A graph and its gradient as two graphs: what runs forwards also gives what backwards is read.

Where a call is differentiated by somebody else (PyTorch's autograd), the gradients by its outputs
come after it has returned.  So there are two programs, and values kept between them.

Kept are values that lie in memory anyway: those that contractions, reductions and windows give or
read, and sums of which rows are normalized.  What is element-wise or moves elements is computed of
them again, fused with what reads it.  So is, if that is asked for, what contractions read: where it
is made of one other kept value, or of a join of such, element by element, its element-wise readers
compute it again, as they read that value, too.

A join of channels that is written anyway, as in a dense block, is kept in place of what it joins:
backwards that is read where it lies in the join, and nothing has to be joined a second time.

A window over the graph's values that gradients alone need, as the places of maxima, runs forwards,
where its neighbours do, and what it gives is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from minidnn.gradients.reverse import pullback, reached_values
from minidnn.graph.attention_patterns import read_results_behind
from minidnn.graph.ir import Constant, Graph, Node, Value, live_nodes
from minidnn.graph.operator import Operator
from minidnn.graph.operators import (
    Attention,
    AttentionGradient,
    Concat,
    LayerNorm,
    MatMul,
    Slice,
    Transpose,
)
from minidnn.graph.types import FLOATS

_CHEAP = ("elementwise", "movement")
_BATCHES = (Attention, AttentionGradient, MatMul)
#: A value that takes more nodes than that is read; what is no larger than this part of it is free.
_MOST_NODES, _SMALL = 4, 16


@dataclass(frozen=True)
class BackwardHalf:
    """What runs backwards.

    Attributes:
        graph: reads inputs of the graph, kept values and gradients by its outputs, in this order;
            gives gradients by its inputs.
        given: the inputs that it reads, by place.
        kept: the outputs of the forward graph that it reads, by place.
        differentiated: the inputs by which it gives gradients, by place.
    """

    graph: Graph
    given: tuple[int, ...]
    kept: tuple[int, ...]
    differentiated: tuple[int, ...]


class Halves:
    """A graph that is differentiated by some of its inputs.

    Attributes:
        graph: the graph, without states; it has not been optimized.
        floating: the outputs that there are gradients by, by place.
        forward: the graph; behind its own outputs it gives values that are kept.
        backward: what runs backwards, with gradients by all of ``floating``.
    """

    def __init__(
        self,
        graph: Graph,
        of: Iterable[int],
        outputs: int | None = None,
        compute_again: bool = False,
    ) -> None:
        """
        of: by which inputs to differentiate, by place; those that nothing is computed of are left
            out.
        outputs: how many of the outputs, from the first, may have gradients; all by default.
        compute_again: whether element-wise nodes compute also what contractions read again.

        UnsupportedError if an operator has no rule; it names the node.
        """
        self.graph = graph
        self._of = tuple(of)
        self._compute_again = compute_again
        own = graph.outputs[:outputs]
        self.floating = tuple(place for place, v in enumerate(own) if v.dtype in FLOATS)
        #: What runs forwards gives, with the first place of each.
        self._results = list(graph.outputs)
        self._places: dict[Value, int] = {}
        for place, value in enumerate(graph.outputs):
            self._places.setdefault(value, place)
        #: Windows of gradients that run forwards: none more once there is a forward graph.
        self._early: dict[tuple[Operator, tuple[Value, ...]], Node] = {}
        self._is_made = False
        #: Where in a kept join values lie that are kept as its parts.
        self._parts: dict[Value, _JoinedPart] = {}
        self.backward = self.backward_of(self.floating)
        self._is_made = True
        nodes = [*graph.nodes, *self._early.values()]
        self.forward = Graph(graph.inputs, self._results, nodes, graph.name)

    def backward_of(self, present: Iterable[int]) -> BackwardHalf:
        """What runs backwards where there are gradients by these outputs alone, by place."""
        graph = self.graph
        answered = Graph(
            graph.inputs, [graph.outputs[place] for place in present], graph.nodes, graph.name
        )
        reached = reached_values(answered)
        places = tuple(sorted(place for place in self._of if graph.inputs[place] in reached))
        whole = read_results_behind(pullback(answered, [graph.inputs[p] for p in places]))
        later = live_nodes(whole.nodes[len(graph.nodes) :], whole.outputs)
        early = self._ran_early(later)
        later = live_nodes([node for node in later if node not in early], whole.outputs)
        forwards = {*graph.nodes, *early}
        needed = [v for v in _read(later, whole.outputs) if v.producer in forwards]
        kept, again = _kept(graph, needed)
        stands = {v: w for node, other in early.items() for v, w in _pairs(node, other)}
        parts: dict[Value, _JoinedPart] = {}
        if self._compute_again:
            if not self._is_made:
                self._parts = _parts_of_joins(graph, kept, again, later)
            kept, again, parts = _in_joins(graph, kept, again, self._parts)
            again |= _made_of_one(graph, kept, again, parts)
        nodes = [*(node for node in graph.nodes if node in again), *later]
        read = {*_read(nodes, whole.outputs)}
        parts = {value: part for value, part in parts.items() if value in read}
        given = tuple(place for place, value in enumerate(graph.inputs) if value in read)
        given_on = [stands.get(value, value) for value in kept]
        for value in given_on:
            if value not in self._places:
                self._places[value] = len(self._results)
                self._results.append(value)
        return BackwardHalf(
            _on_inputs(
                [
                    *(graph.inputs[place] for place in given),
                    *kept,
                    *whole.inputs[len(graph.inputs) :],
                ],
                parts,
                nodes,
                whole.outputs,
                f"{graph.name}.backward",
            ),
            given,
            tuple(map(self._places.__getitem__, given_on)),
            places,
        )

    def _ran_early(self, later: Sequence[Node]) -> dict[Node, Node]:
        """The windows over values of the graph among the nodes of its gradient, and for each the
        node that runs forwards in its place."""
        there = {*self.graph.values, *self.graph.inputs}
        found: dict[Node, Node] = {}
        stands: dict[Value, Value] = {}
        for node in later:
            if node.op.kind != "window" or not there.issuperset(node.inputs):
                continue
            key = node.op, tuple(stands.get(value, value) for value in node.inputs)
            if not self._is_made:
                self._early.setdefault(key, node)
            if key in self._early:
                found[node] = self._early[key]
                stands |= dict(_pairs(node, found[node]))
                there.update(node.outputs)
        return found


def _pairs(node: Node, other: Node) -> Iterable[tuple[Value, Value]]:
    return zip(node.outputs, other.outputs, strict=True)


def _kept(graph: Graph, needed: Sequence[Value]) -> tuple[list[Value], set[Node]]:
    """The values to keep, in the graph's order, and the nodes to compute again."""
    kept: dict[Value, None] = {}
    again: set[Node] = set()
    pending = list(needed)
    while pending:
        value = pending.pop()
        node = value.producer
        if node is None or value in kept or node in again:
            continue
        if _lies_in_memory(graph, value) or _is_sum_normalized(graph, value):
            kept[value] = None
        else:
            again.add(node)
            pending += node.inputs
    order = {value: place for place, value in enumerate(graph.values)}
    return sorted(kept, key=lambda value: order.get(value, len(order))), again


def _made_of_one(
    graph: Graph, kept: Sequence[Value], again: Collection[Node], parts: Collection[Value]
) -> set[Node]:
    """The nodes that compute kept values, each of one other value that is kept or moved and of what
    is as small as a number for each channel, if all of that is there."""
    there = {*kept, *parts, *graph.inputs, *(v for node in again for v in node.outputs)}
    moved = (node.outputs for node in again if node.op.kind == "movement")
    whole = {*kept, *parts, *chain.from_iterable(moved)}
    found: set[Node] = set()
    for value in kept:
        nodes: dict[Node, None] = {}
        read: set[Value] = set()
        pending = [value]
        while pending and len(nodes) <= _MOST_NODES:
            node = pending.pop().producer
            if node is None or node.op.kind != "elementwise":
                break
            nodes[node] = None
            for operand in node.inputs:
                is_large = operand.type.size * _SMALL > value.type.size
                if operand in there and operand is not value:
                    read |= {operand} if is_large else set()
                elif not isinstance(operand, Constant):
                    pending.append(operand)
        else:
            if len(nodes) <= _MOST_NODES and len(read) == 1 and read <= whole:
                found |= nodes.keys()
    return found


def _lies_in_memory(graph: Graph, value: Value) -> bool:
    """Whether a value is written to memory however the graph is fused."""
    node = value.producer
    assert node is not None
    if node.op.kind not in _CHEAP or value in graph.results:
        return True
    readers = [reader.op for reader in graph.readers[value] if reader.op.kind == "contraction"]
    # Batches of matrices are read where the value lies that they are slices and transposes of.
    in_place = node.op.kind == "movement" and all(isinstance(op, _BATCHES) for op in readers)
    return bool(readers) and not in_place


def _read(nodes: Iterable[Node], outputs: Iterable[Value]) -> list[Value]:
    """All that nodes read, and what is given, each once."""
    return list(dict.fromkeys((*(v for node in nodes for v in node.inputs), *outputs)))


def _on_inputs(
    inputs: Sequence[Value],
    parts: Mapping[Value, _JoinedPart],
    nodes: Iterable[Node],
    outputs: Iterable[Value],
    name: str,
) -> Graph:
    """A graph of its own of some nodes, whose inputs, and parts of these, stand for values."""
    known: dict[Value, Value] = {}
    names: set[str] = set()
    for value in inputs:
        unique, count = value.name, 0
        while unique in names:
            count += 1
            unique = f"{value.name}.{count}"
        names.add(unique)
        known[value] = Value(value.type, unique)
    made = [Node(part.slice_of(v), [known[part.whole]], v.name) for v, part in parts.items()]
    known.update((v, node.output) for v, node in zip(parts, made, strict=True))
    again: dict[Value, Value] = {}
    for node in nodes:
        stands = known | again if node.op.kind == "elementwise" else known
        new = node.on([stands.get(v, v) for v in node.inputs])
        # A value that is kept stays what was kept, but for those who compute it again.
        for old, value in zip(node.outputs, new.outputs, strict=True):
            if known.setdefault(old, value) is not value:
                again[old] = value
        made.append(new)
    results = [known.get(value, value) for value in outputs]
    return Graph([known[value] for value in inputs], results, made, name)


#: What reads parts of values where they lie.
_READ_PARTS = ("elementwise", "reduction")


@dataclass(frozen=True)
class _JoinedPart:
    """Channels of a join, from the first on."""

    whole: Value
    first: int

    def slice_of(self, value: Value) -> Slice:
        """What takes them, where they are a value."""
        return Slice((0, self.first, 0, 0), value.shape, (1, 1, 1, 1))


def _parts_of_joins(
    graph: Graph, kept: Collection[Value], again: Collection[Node], later: Sequence[Node]
) -> dict[Value, _JoinedPart]:
    """Where values lie in joins of channels that are better kept: all that these join is kept
    else, and is read backwards by nodes that read parts as well as wholes."""
    read = {v for node in later if node.op.kind not in _READ_PARTS for v in node.inputs}
    found: dict[Value, _JoinedPart] = {}
    for node in reversed(graph.nodes):
        if node not in again or not _joins_channels(node) or node.output in found:
            continue
        whole, inside = _widest(graph, node).output, dict[Value, _JoinedPart]()
        leaves = _spread(whole, 0, whole, inside)
        is_kept = len(leaves) == len(set(leaves)) and {*kept}.issuperset(leaves)
        if is_kept and all(map(inside.keys().isdisjoint, (found, read, graph.outputs))):
            found |= inside
    return found


def _joins_channels(node: Node | None) -> bool:
    return (
        node is not None
        and isinstance(node.op, Concat)
        and node.output.type.rank == 4
        and node.op.axis % 4 == 1
    )


def _widest(graph: Graph, node: Node) -> Node:
    """The join that begins with a join, or with one that begins with it."""
    while True:
        readers = (r for r in graph.readers[node.output] if _joins_channels(r))
        wider = next((r for r in readers if r.inputs[0] is node.output), None)
        if wider is None:
            return node
        node = wider


def _spread(
    value: Value, first: int, whole: Value, inside: dict[Value, _JoinedPart]
) -> list[Value]:
    """What is joined into a value that begins at a channel of a whole, and is no join itself;
    notes of all of that where it lies."""
    inside[value] = _JoinedPart(whole, first)
    node = value.producer
    if node is None or not _joins_channels(node):
        return [value]
    leaves = []
    for operand in node.inputs:
        leaves += _spread(operand, first, whole, inside)
        first += operand.shape[1]
    return leaves


def _in_joins(
    graph: Graph, kept: Sequence[Value], again: Collection[Node], known: Mapping[Value, _JoinedPart]
) -> tuple[list[Value], set[Node], dict[Value, _JoinedPart]]:
    """The values to keep and the nodes to compute again where some are parts of joins, and which
    parts of which joins are read."""
    every = [*kept, *(value for node in again for value in node.outputs)]
    order = {value: place for place, value in enumerate(graph.values)}
    every.sort(key=lambda value: order.get(value, len(order)))
    parts = {value: known[value] for value in every if value in known}
    wholes = {part.whole: None for part in parts.values()}
    keeps = {value: None for value in (*kept, *wholes) if value in wholes or value not in parts}
    found = sorted(keeps, key=lambda value: order.get(value, len(order)))
    again = {node for node in again if not any(value in parts for value in node.outputs)}
    return found, again, {v: part for v, part in parts.items() if part.whole is not v}


def _is_sum_normalized(graph: Graph, value: Value) -> bool:
    """Whether a value is made of several of its size, element by element, and its rows are
    normalized, perhaps behind a move of its axes, as the sums in front of layers are.

    It is written, as the normalization and the next sum both read it; computed again, each sum
    would need all those before.
    """
    node = value.producer
    if node is None or node.op.kind != "elementwise":
        return False
    if sum(operand.type.size == value.type.size for operand in node.inputs) < 2:
        return False
    readers = graph.readers[value]
    moves = (reader for reader in readers if isinstance(reader.op, Transpose))
    behind = (reader for move in moves for reader in graph.readers[move.output])
    return any(isinstance(reader.op, LayerNorm) for reader in (*readers, *behind))
