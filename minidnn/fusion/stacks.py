"""Finds stacks: connected, convex parts of a graph that can be computed patch by patch.

BrainSlug's stacks (arXiv 1804.08378, section 3) are chains of element-wise and pooling layers.
Ours are parts of a directed acyclic graph: residual adds, values with several readers and
concatenations of channels may lie inside.  A part is convex if no path leaves it and comes
back, so that it can run as a whole; all stacks together can be contracted without a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence

from minidnn._cached_property import cached_property
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Elementwise, Windowed
from minidnn.graph.operators import Concat, Formula
from minidnn.graph.types import FLOATS, HALF_DTYPES, INT8_DTYPES


def why_not_fusable(node: Node) -> str | None:
    """Why a node cannot be computed patch by patch; None if it can."""
    op = node.op
    exempt = mixes_floats(node) or _chooses_bytes(node)
    if not exempt and (reason := computes_in_several(node)) is not None:
        return reason
    if isinstance(op, Windowed):
        return None
    if isinstance(op, Concat):
        rank = node.output.type.rank
        if op.axis % max(rank, 1) != 1:
            return f"it concatenates along axis {op.axis}, not along channels"
        return None
    if not isinstance(op, Elementwise):
        return f"{op.name} is a {op.kind} operator"
    out = node.output.type
    if out.rank < 2:
        return f"its output of rank {out.rank} has no channels"
    for value in node.inputs[: len(node.inputs) - op.channel_count]:
        if value.type.shape != out.shape and (value.type.rank != out.rank or out.rank > 4):
            return f"operand {value!r} broadcasts over planes in a way that patches cannot"
    return None


def computes_in_several(node: Node) -> str | None:
    """Why a node's dtypes keep it from being fused with others; None if they don't."""
    dtypes = dict.fromkeys(value.dtype for value in (*node.inputs, *node.outputs))
    if len(dtypes) > 1 or next(iter(dtypes)) not in FLOATS:
        return f"it computes with {' and '.join(dtypes)}"
    return None


def mixes_floats(node: Node) -> bool:
    """Whether a node computes in float32 with values of float32 and of one half precision, or with
    int8 or uint8 that stand for real numbers."""
    op, read = node.op, [value.dtype for value in node.inputs]
    if not isinstance(op, Formula) or op.computed_in(read) != "float32":
        return False
    narrow = {*read, *(value.dtype for value in node.outputs)} - {"float32"}
    if op.compute != "float32" and op.dtype not in INT8_DTYPES:
        return False
    return (len(narrow) == 1 and narrow <= {*HALF_DTYPES}) or (
        bool(narrow) and narrow <= {*INT8_DTYPES}
    )


def _has_bytes(node: Node) -> bool:
    return any(value.dtype in INT8_DTYPES for value in (*node.inputs, *node.outputs))


def _chooses_bytes(node: Node) -> bool:
    """Whether a node is a maximum over windows of int8 or uint8, as it would be of floats."""
    if not isinstance(node.op, Windowed) or not node.op.window().chooses:
        return False
    dtypes = {value.dtype for value in (*node.inputs, *node.outputs)}
    return len(dtypes) == 1 and dtypes <= {*INT8_DTYPES}


def is_tensor_operand(node: Node, index: int) -> bool:
    """Whether an operand is a tensor, not a vector over channels."""
    if isinstance(node.op, Elementwise):
        return index < len(node.inputs) - node.op.channel_count
    return True


def reads_otherwise(node: Node) -> str | None:
    """Why a node's tensors cannot be read at the positions of its result; None if they can."""
    tensors = [value for i, value in enumerate(node.inputs) if is_tensor_operand(node, i)]
    if any(isinstance(value, Constant) for value in tensors):
        return "it reads a constant tensor"
    if any(value.shape != node.output.shape for value in tensors):
        return "it broadcasts a tensor"
    return None


def channel_frame(nodes: Sequence[Node]) -> dict[Value, int] | None:
    """Returns the first channel of each value computed by ``nodes`` on one common channel axis.

    Element-wise and window operators keep channels where they are; a concatenation puts its
    operands one after the other.  None if a value would need two places.
    """
    inside = {value for node in nodes for value in node.outputs}
    links: dict[Value, list[tuple[Value, int]]] = {value: [] for value in inside}
    for node in nodes:
        shift = 0
        for i, value in enumerate(node.inputs):
            if value in inside and is_tensor_operand(node, i):
                links[node.output].append((value, shift))
                links[value].append((node.output, -shift))
            if isinstance(node.op, Concat):
                shift += value.shape[1]
    frame: dict[Value, int] = {}
    for node in nodes:
        if node.output in frame:
            continue
        frame[node.output] = 0
        pending = [node.output]
        while pending:
            value = pending.pop()
            for other, shift in links[value]:
                if other not in frame:
                    frame[other] = frame[value] + shift
                    pending.append(other)
                elif frame[other] != frame[value] + shift:
                    return None
    lowest = min(frame.values(), default=0)
    return {value: place - lowest for value, place in frame.items()}


class _Group:
    """A group of nodes; the nodes before and after it, as bits over positions; and what decides
    whether it may be merged with another group."""

    def __init__(self, node: Node, position: int) -> None:
        self.positions = [position]
        self.bits = 1 << position
        self.before = 0
        self.after = 0
        # int8 and uint8 store floats; they do not count among the dtypes that must be equal.
        self.dtypes = {value.dtype for value in node.outputs} - {*INT8_DTYPES}
        self.mixes = mixes_floats(node) and not _has_bytes(node)
        moves = isinstance(node.op, (Concat, Windowed))
        #: The dtypes that concatenations and windows read or give.
        self.moved = {v.dtype for v in (*node.inputs, *node.outputs)} if moves else set[str]()
        self.batches = {value.shape[:1] for value in node.outputs}
        self.has_concat = isinstance(node.op, Concat)
        self.values = set(node.outputs)
        self.broadcast = {
            value
            for value in node.inputs
            if node.op.kind == "elementwise" and value.shape != node.output.shape
        }

    def take(self, other: _Group) -> None:
        self.positions += other.positions
        self.bits |= other.bits
        self.before |= other.before
        self.after |= other.after
        self.dtypes |= other.dtypes
        self.mixes |= other.mixes
        self.moved |= other.moved
        self.batches |= other.batches
        self.has_concat |= other.has_concat
        self.values |= other.values
        self.broadcast |= other.broadcast


class Groups:
    """Groups of nodes that can be contracted without making a cycle.

    Keeps, as bit sets over positions, which nodes of the contracted graph lie before and after
    each other, so that a merge is checked in a few operations.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @cached_property
    def _group(self) -> list[_Group]:
        """The group of each node; made when first asked for, as it takes long for large graphs."""
        graph = self.graph
        found = [_Group(node, i) for i, node in enumerate(graph.nodes)]
        for i, node in enumerate(graph.nodes):
            for value in node.inputs:
                if value.producer in graph.position:
                    j = graph.position[value.producer]
                    found[i].before |= found[j].before | 1 << j
        for i, node in reversed(list(enumerate(graph.nodes))):
            for value in node.outputs:
                for reader in graph.readers[value]:
                    j = graph.position[reader]
                    found[i].after |= found[j].after | 1 << j
        return found

    def of(self, node: Node) -> _Group:
        """The group that a node is in."""
        return self._group[self.graph.position[node]]

    def nodes_of(self, node: Node) -> list[Node]:
        """The group that a node is in, itself included, in the graph's order."""
        return [self.graph.nodes[i] for i in sorted(self.of(node).positions)]

    def is_single(self, node: Node) -> bool:
        """Whether a node is a group by itself."""
        return len(self.of(node).positions) == 1

    def are_one(self, nodes: Sequence[Node]) -> bool:
        """Whether these nodes are in one group."""
        return len({id(self.of(node)) for node in nodes}) == 1

    def can_merge(self, nodes: Sequence[Node]) -> bool:
        """Whether the groups of these nodes may become one."""
        union = before = after = 0
        for group in map(self.of, nodes):
            union |= group.bits
            before |= group.before
            after |= group.after
        return not before & after & ~union

    def merge(self, nodes: Sequence[Node]) -> None:
        """Makes one group of the groups of these nodes; the caller has asked can_merge.

        Groups after all of them have all of them in their sets already, and so have groups before
        all of them: only the rest, which is few in a chain, is updated.
        """
        merged, *others = sorted(
            dict.fromkeys(map(self.of, nodes)), key=lambda group: -len(group.positions)
        )
        shared_before, shared_after = merged.before, merged.after
        for group in others:
            shared_before &= group.before
            shared_after &= group.after
            merged.take(group)
            for i in group.positions:
                self._group[i] = merged
        before, after = merged.before | merged.bits, merged.after | merged.bits
        for group in self._at(merged.after & ~shared_after & ~merged.bits):
            group.before |= before
        for group in self._at(merged.before & ~shared_before & ~merged.bits):
            group.after |= after

    def _at(self, positions: int) -> dict[_Group, None]:
        """The groups that have one of these positions."""
        return dict.fromkeys(self._group[i] for i in _bits(positions))


def _bits(mask: int) -> list[int]:
    """The positions of a mask's bits, in order."""
    positions = []
    while mask:
        low = mask & -mask
        positions.append(low.bit_length() - 1)
        mask ^= low
    return positions


def find_stacks(graph: Graph) -> list[list[Node]]:
    """The stacks of a graph, each in the graph's order, by their first nodes.

    Grown greedily: in the graph's order, each fusable node joins the stacks of its operands
    where the result stays contractible and its channels fit on one axis.  A concatenation that
    something outside of its stack reads is left out, and stacks are grown again: it is better
    computed by writing its operands side by side in memory.
    """
    fusable = {node for node in graph.nodes if why_not_fusable(node) is None}
    loose = [n for n in graph.nodes if n in fusable and _is_unfused_concat(graph, n, fusable)]
    while True:
        fusable.difference_update(loose)
        stacks = _grow(graph, fusable)
        loose = []
        for stack in stacks:
            members = set(stack)
            loose += [node for node in stack if _is_unfused_concat(graph, node, members)]
        if not loose:
            return stacks


def _grow(graph: Graph, fusable: set[Node]) -> list[list[Node]]:
    """Grows stacks of fusable nodes: merges each with the stacks of its operands where it may."""
    groups = Groups(graph)
    for node in graph.nodes:
        if node not in fusable:
            continue
        for i, value in enumerate(node.inputs):
            producer = value.producer
            if producer not in fusable or not is_tensor_operand(node, i):
                continue
            if not _belongs_to_reader(groups, fusable, node, value):
                _try_join(groups, producer, node, value)
    stacks: dict[_Group, list[Node]] = {}
    for node in graph.nodes:
        if node in fusable:
            stacks.setdefault(groups.of(node), []).append(node)
    return list(stacks.values())


def _belongs_to_reader(groups: Groups, fusable: set[Node], node: Node, value: Value) -> bool:
    """Whether a node is better fused with the only reader of its result than with the producer of a
    tensor that it reads.

    So it is where all three cannot be fused, as something between them, such as a sum, needs all of
    the tensor: that is stored anyway, and the result need not be.
    """
    graph = groups.graph
    producer = value.producer
    if producer is None:
        return False
    if value not in graph.results and fusable.issuperset(graph.readers[value]):
        return False
    if isinstance(node.op, Elementwise):
        return _moves_less(groups, fusable, node, value, producer)
    reader = graph.only_reader(node.output)
    if reader not in fusable or node.output in graph.results:
        return False
    if not (isinstance(node.op, Windowed) and isinstance(reader.op, Windowed)):
        return False
    others = [tensor for tensor in node.tensors if tensor is not value]
    # What else it reads must have been computed for it.
    if not others or not all(_is_computed_for(graph, node, tensor) for tensor in others):
        return False
    return not groups.can_merge([producer, node, reader])


def _moves_less(
    groups: Groups, fusable: set[Node], node: Node, value: Value, producer: Node
) -> bool:
    """Whether a chain of element-wise nodes from a stored value on moves fewer bytes if it is fused
    with the first reader that cannot be fused with the value's producer."""
    graph, chain = groups.graph, [node]
    while True:
        result = chain[-1].output
        reader = graph.only_reader(result)
        if reader not in fusable or result in graph.results:
            return False
        if not isinstance(reader.op, Elementwise) or reader.output.shape != node.output.shape:
            return False
        if not groups.can_merge([producer, *chain, reader]):
            break
        chain.append(reader)
    read = _read_for(graph, [each for member in chain for each in member.tensors])
    for tensor in _read_for(graph, [each for each in reader.tensors if each is not result]):
        read.pop(tensor, None)
    bytes = sum(each.type.bytes for each in read if each.shape == value.shape)
    return bytes < 2 * result.type.bytes


def _read_for(graph: Graph, tensors: Sequence[Value]) -> dict[Value, None]:
    """Returns the stored tensors that ``tensors`` are computed from, where element-wise nodes
    compute them for one reader alone."""
    stored: dict[Value, None] = {}
    pending = list(tensors)
    while pending:
        value = pending.pop()
        producer = value.producer
        if (
            producer is not None
            and producer in graph.position
            and _is_made_for_one(graph, producer)
        ):
            pending += producer.tensors
        else:
            stored[value] = None
    return stored


def _is_made_for_one(graph: Graph, node: Node) -> bool:
    """Whether a node is element-wise and its result has a single reader."""
    if not isinstance(node.op, Elementwise) or why_not_fusable(node) is not None:
        return False
    return graph.only_reader(node.output) is not None


def _is_computed_for(graph: Graph, node: Node, value: Value) -> bool:
    """Whether a value is computed by an element-wise node and read by this node alone."""
    producer = value.producer
    return (
        producer is not None
        and isinstance(producer.op, Elementwise)
        and graph.only_reader(value) is node
    )


def _is_unfused_concat(graph: Graph, node: Node, stack: set[Node]) -> bool:
    """Whether a node is a concatenation that is not read by its stack alone."""
    if not isinstance(node.op, Concat):
        return False
    readers = graph.readers[node.output]
    return node.output in graph.results or not readers or not stack.issuperset(readers)


def _try_join(groups: Groups, producer: Node, node: Node, value: Value) -> None:
    """Merges two nodes' groups, if patches can pass from one to the other."""
    if isinstance(node.op, Elementwise) and value.shape != node.output.shape:
        return  # a broadcast reads other positions than it writes
    first, second = groups.of(producer), groups.of(node)
    if first is second:
        return
    if len(first.batches | second.batches) > 1 or not _compute_alike(first, second):
        return
    if first.has_concat or second.has_concat:
        both = groups.nodes_of(producer) + groups.nodes_of(node)
        if channel_frame(both) is None:
            return
    if _reads_broadcast(first, second) or not groups.can_merge([producer, node]):
        return
    groups.merge([producer, node])


def _compute_alike(first: _Group, second: _Group) -> bool:
    """Whether dtypes let two groups be one: different ones are fused only where formulas mix them,
    and what windows and concatenations move among them has one half-precision dtype."""
    if not (first.mixes or second.mixes):
        return len(first.dtypes | second.dtypes) <= 1
    moved = first.moved | second.moved
    return len(moved) <= 1 and moved <= {*HALF_DTYPES}


def _reads_broadcast(first: _Group, second: _Group) -> bool:
    """Whether one of the groups broadcasts a value that the other computes."""
    return not (
        first.broadcast.isdisjoint(second.values) and second.broadcast.isdisjoint(first.values)
    )


def boundary(graph: Graph, nodes: Sequence[Node]) -> tuple[list[Value], list[Value]]:
    """Returns the tensors that a set of nodes reads from outside, and those of its own that are
    read outside, are results of the graph, or read by nobody, each in order of appearance.

    The last are results of dead nodes, which stay where the fuel for dropping them is used up: a
    region of such nodes would have no result without them.
    """
    member = set(nodes)
    results = set(graph.results)
    reads: dict[Value, None] = {}
    gives: dict[Value, None] = {}
    for node in nodes:
        for value in node.inputs:
            if value.producer not in member and not isinstance(value, Constant):
                reads[value] = None
        for value in node.outputs:
            readers = graph.readers[value]
            if value in results or not readers or any(r not in member for r in readers):
                gives[value] = None
    return list(reads), list(gives)
