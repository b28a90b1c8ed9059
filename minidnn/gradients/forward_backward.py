"""A graph and its gradient as two graphs: the forward graph also returns the saved activations that
the backward graph reads.

Where another system differentiates a call (PyTorch's autograd), the gradients of its outputs come
after it has returned.  So there are two programs, and values kept between them.

Values that are in memory anyway are kept: the operands and results of contractions, reductions and
windows, and sums whose rows are normalized.  Element-wise nodes and moves are recomputed from these
in the backward graph, fused with their readers.  On request, the operands of contractions are
recomputed, too: where element-wise nodes compute such an operand from one other kept value, or from
a concatenation of kept values, its element-wise readers compute it again as they read that value.

A concatenation of channels that is written anyway, as in a dense block, is kept in place of its
operands: the backward graph reads them as slices of it, and concatenates nothing a second time.

A window over the graph's values that gradients alone need, such as the index of a maximum, runs in
the forward graph, next to the window that it belongs to, and its result is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from minidnn.gradients.reverse import pullback, reached_values
from minidnn.graph.attention_patterns import read_transposed_results
from minidnn.graph.ir import Constant, Graph, Node, Value, fresh, live_nodes
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
#: Recomputing a value takes at most so many nodes, else it is read; and operands with at most one
#: 16th of its elements are not counted as read.
_MAX_NODES, _SMALL = 4, 16


@dataclass(frozen=True)
class BackwardGraph:
    """The backward program.

    Attributes:
        graph: reads inputs of the original graph, kept values and gradients of its outputs, in this
            order; returns gradients of its inputs.
        given: indices of the inputs that it reads.
        kept: indices of the outputs of the forward graph that it reads.
        differentiated: indices of the inputs whose gradients it returns.
    """

    graph: Graph
    given: tuple[int, ...]
    kept: tuple[int, ...]
    differentiated: tuple[int, ...]


class ForwardBackward:
    """The forward and backward graphs of a graph that is differentiated by some of its inputs.

    Attributes:
        graph: the graph, without states; it has not been optimized.
        floating: indices of the outputs that have gradients: those of floating-point dtypes.
        forward: the graph with the kept values as further outputs.
        backward: the backward program, given gradients of all outputs in ``floating``.
    """

    def __init__(
        self,
        graph: Graph,
        of: Iterable[int],
        outputs: int | None = None,
        compute_again: bool = False,
    ) -> None:
        """
        of: indices of the inputs to differentiate by; an input that no output depends on is left
            out.
        outputs: how many of the outputs, from the first, may have gradients; all by default.
        compute_again: whether operands of contractions are recomputed by element-wise nodes, too.

        UnsupportedError if an operator has no rule; it names the node.
        """
        self.graph = graph
        self._of = tuple(of)
        self._compute_again = compute_again
        differentiable = graph.outputs[:outputs]
        self.floating = tuple(index for index, v in enumerate(differentiable) if v.dtype in FLOATS)
        #: The outputs of the forward graph, and the first index of each among them.
        self._results = list(graph.outputs)
        self._places: dict[Value, int] = {}
        for index, value in enumerate(graph.outputs):
            self._places.setdefault(value, index)
        #: Windows of gradients that run in the forward graph; none is added once that is made.
        self._early: dict[tuple[Operator, tuple[Value, ...]], Node] = {}
        self._is_made = False
        #: For each value that is kept as part of a concatenation: which channels of it they are.
        self._parts: dict[Value, _ConcatSlice] = {}
        self.backward = self.backward_of(self.floating)
        self._is_made = True
        nodes = [*graph.nodes, *self._early.values()]
        self.forward = Graph(graph.inputs, self._results, nodes, graph.name)

    def backward_of(self, present: Iterable[int]) -> BackwardGraph:
        """The backward program for gradients of the outputs with the indices ``present`` alone."""
        graph = self.graph
        restricted = Graph(
            graph.inputs, [graph.outputs[index] for index in present], graph.nodes, graph.name
        )
        reached = reached_values(restricted)
        input_indices = tuple(sorted(index for index in self._of if graph.inputs[index] in reached))
        gradient_graph = read_transposed_results(
            pullback(restricted, [graph.inputs[p] for p in input_indices])
        )
        backward_nodes = live_nodes(
            gradient_graph.nodes[len(graph.nodes) :], gradient_graph.outputs
        )
        run_early = self._forward_windows(backward_nodes)
        backward_nodes = live_nodes(
            [node for node in backward_nodes if node not in run_early], gradient_graph.outputs
        )
        forward_nodes = {*graph.nodes, *run_early}
        needed = [
            v for v in _read(backward_nodes, gradient_graph.outputs) if v.producer in forward_nodes
        ]
        kept, recomputed = _kept(graph, needed)
        forward_values = {
            v: w for node, counterpart in run_early.items() for v, w in _pairs(node, counterpart)
        }
        slices: dict[Value, _ConcatSlice] = {}
        if self._compute_again:
            if not self._is_made:
                self._parts = _slices_of_concats(graph, kept, recomputed, backward_nodes)
            kept, recomputed, slices = _with_concat_slices(graph, kept, recomputed, self._parts)
            recomputed |= _recomputable(graph, kept, recomputed, slices)
        nodes = [*(node for node in graph.nodes if node in recomputed), *backward_nodes]
        read = {*_read(nodes, gradient_graph.outputs)}
        slices = {value: part for value, part in slices.items() if value in read}
        inputs_read = tuple(index for index, value in enumerate(graph.inputs) if value in read)
        saved = [forward_values.get(value, value) for value in kept]
        for value in saved:
            if value not in self._places:
                self._places[value] = len(self._results)
                self._results.append(value)
        return BackwardGraph(
            _on_inputs(
                [
                    *(graph.inputs[index] for index in inputs_read),
                    *kept,
                    *gradient_graph.inputs[len(graph.inputs) :],
                ],
                slices,
                nodes,
                gradient_graph.outputs,
                f"{graph.name}.backward",
            ),
            inputs_read,
            tuple(map(self._places.__getitem__, saved)),
            input_indices,
        )

    def _forward_windows(self, backward_nodes: Sequence[Node]) -> dict[Node, Node]:
        """For each gradient node that is a window over values of the graph, the node that computes
        it in the forward graph."""
        available = {*self.graph.values, *self.graph.inputs}
        early_nodes: dict[Node, Node] = {}
        forward_values: dict[Value, Value] = {}
        for node in backward_nodes:
            if node.op.kind != "window" or not available.issuperset(node.inputs):
                continue
            key = node.op, tuple(forward_values.get(value, value) for value in node.inputs)
            if not self._is_made:
                self._early.setdefault(key, node)
            if key in self._early:
                early_nodes[node] = self._early[key]
                forward_values |= dict(_pairs(node, early_nodes[node]))
                available.update(node.outputs)
        return early_nodes


def _pairs(node: Node, counterpart: Node) -> Iterable[tuple[Value, Value]]:
    return zip(node.outputs, counterpart.outputs, strict=True)


def _kept(graph: Graph, needed: Sequence[Value]) -> tuple[list[Value], set[Node]]:
    """The values to keep, in the graph's order, and the nodes to recompute."""
    kept: dict[Value, None] = {}
    recomputed: set[Node] = set()
    pending = list(needed)
    while pending:
        value = pending.pop()
        node = value.producer
        if node is None or value in kept or node in recomputed:
            continue
        if _is_materialized(graph, value) or _is_sum_normalized(graph, value):
            kept[value] = None
        else:
            recomputed.add(node)
            pending += node.inputs
    order = {value: index for index, value in enumerate(graph.values)}
    return sorted(kept, key=lambda value: order.get(value, len(order))), recomputed


def _recomputable(
    graph: Graph,
    kept: Sequence[Value],
    recomputed_nodes: Collection[Node],
    slices: Collection[Value],
) -> set[Node]:
    """The nodes that recompute kept values: each such value from one other large value, which is
    kept or the result of a recomputed move, and from small operands, such as one number a channel.

    All operands must be available in the backward graph.
    """
    available = {
        *kept,
        *slices,
        *graph.inputs,
        *(v for node in recomputed_nodes for v in node.outputs),
    }
    moved_values = (node.outputs for node in recomputed_nodes if node.op.kind == "movement")
    large_sources = {*kept, *slices, *chain.from_iterable(moved_values)}
    recomputed: set[Node] = set()
    for value in kept:
        nodes: dict[Node, None] = {}
        large_reads: set[Value] = set()
        pending = [value]
        while pending and len(nodes) <= _MAX_NODES:
            node = pending.pop().producer
            if node is None or node.op.kind != "elementwise":
                break
            nodes[node] = None
            for operand in node.inputs:
                is_large = operand.type.size * _SMALL > value.type.size
                if operand in available and operand is not value:
                    large_reads |= {operand} if is_large else set()
                elif not isinstance(operand, Constant):
                    pending.append(operand)
        else:
            if len(nodes) <= _MAX_NODES and len(large_reads) == 1 and large_reads <= large_sources:
                recomputed |= nodes.keys()
    return recomputed


def _is_materialized(graph: Graph, value: Value) -> bool:
    """Whether a value is written to memory however the graph is fused."""
    node = value.producer
    assert node is not None
    if node.op.kind not in _CHEAP or value in graph.results:
        return True
    readers = [reader.op for reader in graph.readers[value] if reader.op.kind == "contraction"]
    # Batched matrix products read slices and transposes as strided views of the original value.
    in_place = node.op.kind == "movement" and all(isinstance(op, _BATCHES) for op in readers)
    return bool(readers) and not in_place


def _read(nodes: Iterable[Node], outputs: Iterable[Value]) -> list[Value]:
    """The operands of the nodes, and the outputs, each once."""
    return list(dict.fromkeys((*(v for node in nodes for v in node.inputs), *outputs)))


def _on_inputs(
    inputs: Sequence[Value],
    slices: Mapping[Value, _ConcatSlice],
    nodes: Iterable[Node],
    outputs: Iterable[Value],
    name: str,
) -> Graph:
    """A new graph of copies of ``nodes``: fresh inputs replace the values ``inputs``, and slices of
    these replace the values in ``parts``."""
    copies: dict[Value, Value] = {}
    names: set[str] = set()
    for value in inputs:
        copies[value] = Value(value.type, fresh(value.name, names))
    new_nodes = [Node(part.slice_of(v), [copies[part.whole]], v.name) for v, part in slices.items()]
    copies.update((v, node.output) for v, node in zip(slices, new_nodes, strict=True))
    recomputed: dict[Value, Value] = {}
    for node in nodes:
        operands = copies | recomputed if node.op.kind == "elementwise" else copies
        new = node.on([operands.get(v, v) for v in node.inputs])
        # A kept value is read as an input; only element-wise nodes read its recomputed copy.
        for old, value in zip(node.outputs, new.outputs, strict=True):
            if copies.setdefault(old, value) is not value:
                recomputed[old] = value
        new_nodes.append(new)
    results = [copies.get(value, value) for value in outputs]
    return Graph([copies[value] for value in inputs], results, new_nodes, name)


#: Kinds of operators whose kernels read a slice of channels in place.
_READ_PARTS = ("elementwise", "reduction")


@dataclass(frozen=True)
class _ConcatSlice:
    """A value as channels of the concatenation ``whole``, from channel ``first`` on."""

    whole: Value
    first: int

    def slice_of(self, value: Value) -> Slice:
        """The operator that takes ``value`` out of the concatenation."""
        return Slice((0, self.first, 0, 0), value.shape, (1, 1, 1, 1))


def _slices_of_concats(
    graph: Graph, kept: Collection[Value], recomputed_nodes: Collection[Node], later: Sequence[Node]
) -> dict[Value, _ConcatSlice]:
    """The channel offsets of values in concatenations that are kept in their place.

    A concatenation is kept if all of its operands would be kept otherwise, and if the backward
    nodes that read these can read slices of channels in place.
    """
    read_whole = {v for node in later if node.op.kind not in _READ_PARTS for v in node.inputs}
    all_parts: dict[Value, _ConcatSlice] = {}
    for node in reversed(graph.nodes):
        if node not in recomputed_nodes or not _is_channel_concat(node) or node.output in all_parts:
            continue
        outermost, inside = _widest(graph, node).output, dict[Value, _ConcatSlice]()
        leaves = _spread(outermost, 0, outermost, inside)
        is_kept = len(leaves) == len(set(leaves)) and {*kept}.issuperset(leaves)
        if is_kept and all(map(inside.keys().isdisjoint, (all_parts, read_whole, graph.outputs))):
            all_parts |= inside
    return all_parts


def _is_channel_concat(node: Node | None) -> bool:
    return (
        node is not None
        and isinstance(node.op, Concat)
        and node.output.type.rank == 4
        and node.op.axis % 4 == 1
    )


def _widest(graph: Graph, node: Node) -> Node:
    """The last concatenation of a chain in which each one's first operand is the one before."""
    while True:
        readers = (r for r in graph.readers[node.output] if _is_channel_concat(r))
        wider = next((r for r in readers if r.inputs[0] is node.output), None)
        if wider is None:
            return node
        node = wider


def _spread(
    value: Value, first: int, whole: Value, inside: dict[Value, _ConcatSlice]
) -> list[Value]:
    """The operands that ``value`` is concatenated from, nested concatenations flattened.

    Enters into ``inside`` which channels of ``whole`` each of them is; ``value`` itself begins at
    channel ``first``.
    """
    inside[value] = _ConcatSlice(whole, first)
    node = value.producer
    if node is None or not _is_channel_concat(node):
        return [value]
    leaves = []
    for operand in node.inputs:
        leaves += _spread(operand, first, whole, inside)
        first += operand.shape[1]
    return leaves


def _with_concat_slices(
    graph: Graph,
    kept: Sequence[Value],
    recomputed: Collection[Node],
    known: Mapping[Value, _ConcatSlice],
) -> tuple[list[Value], set[Node], dict[Value, _ConcatSlice]]:
    """The values to keep and the nodes to recompute when the values in ``known`` are read as slices
    of concatenations, and those slices."""
    values = [*kept, *(value for node in recomputed for value in node.outputs)]
    order = {value: index for index, value in enumerate(graph.values)}
    values.sort(key=lambda value: order.get(value, len(order)))
    slices = {value: known[value] for value in values if value in known}
    wholes = {part.whole: None for part in slices.values()}
    keeps = {value: None for value in (*kept, *wholes) if value in wholes or value not in slices}
    ordered = sorted(keeps, key=lambda value: order.get(value, len(order)))
    recomputed = {node for node in recomputed if not any(value in slices for value in node.outputs)}
    return ordered, recomputed, {v: part for v, part in slices.items() if part.whole is not v}


def _is_sum_normalized(graph: Graph, value: Value) -> bool:
    """Whether an element-wise node computes a value from several of its size, and a layer
    normalization reads it, perhaps transposed: the residual sum in front of a layer.

    It is kept, since both the normalization and the next sum read it; to recompute one such sum
    takes all those before it.
    """
    node = value.producer
    if node is None or node.op.kind != "elementwise":
        return False
    if sum(operand.type.size == value.type.size for operand in node.inputs) < 2:
        return False
    readers = graph.readers[value]
    transposes = (reader for reader in readers if isinstance(reader.op, Transpose))
    indirect = (reader for move in transposes for reader in graph.readers[move.output])
    return any(isinstance(reader.op, LayerNorm) for reader in (*readers, *indirect))
