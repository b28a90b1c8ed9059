"""Removes what computes nothing and computes what is known; states become constants, and joins that
begin alike share their beginnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from minidnn.fusion.target import Target
from minidnn.graph.index_map import Indexed
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, State, Value
from minidnn.graph.operator import Operator, Reshaping, Windowed
from minidnn.graph.operators import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    Concat,
    Dropout,
    Identity,
    Mul,
    ScaleShift,
)
from minidnn.graph.types import FLOATS, TensorType
from minidnn.passes.infrastructure import Context, Pass


def freeze(graph: Graph, context: Context) -> Graph:
    """States become constants.

    Handles: every state that the graph does not update, which becomes a constant of its initial
    array; all passes after it see what they would see had the network been recorded without states.
    It is no optimization, and takes no fuel.
    Refuses: states that the graph updates, and all of them if a store holds them
    (``Context.stored``).
    """
    frozen = [state for state in graph.states if state not in graph.updates]
    if context.stored or not frozen:
        return graph
    rewriter = Rewriter(graph)
    for state in frozen:
        rewriter.replace(state, Constant(state.type, state.name, partial(_data, state)))
    for node in graph.nodes:
        rewriter.keep(node)
    return rewriter.finish()


def _data(state: State) -> np.ndarray:
    return state.data


FREEZE = Pass("freeze", freeze)


#: What outputs of a node may take to become constants, beside 4 times what it reads.
FOLDED_BYTES = 256 << 20


def simplify(graph: Graph, context: Context) -> Graph:
    """Removes what computes nothing and computes what is known.

    Handles: identities (Identity, Dropout, windows of one position, reshapes to the same shape,
    adaptive pooling to the input's size, joins of one value, moves that move nothing); adaptive
    pooling whose sizes divide, which becomes a regular window if it is short, and long regular
    windows side by side, which become adaptive; joins that only a join along the same axis reads,
    which become part of it; nodes whose operands are all constants, unless their outputs are very
    large; nodes nobody reads. Leaves: arithmetic identities such as x * 1, which are not exact for
    NaN payloads and -0. Only the sign of zero may change: an average over one position adds -0 to
    0, which gives 0.
    """
    # Joins last: what reads one may have gone.
    return _whole_joins(_fewer_nodes(graph, context), context)


def _fewer_nodes(graph: Graph, context: Context) -> Graph:
    rewriter = Rewriter(graph)
    for node in _without_dead(graph, context, rewriter):
        if is_identity(node):
            if context.allow(f"drop {node.name} ({node.op})"):
                rewriter.replace(node.output, rewriter.value(node.inputs[0]))
                continue
        elif (regular := _regular(node, context.target)) is not None:
            if context.allow(f"{node.name}: {node.op} is {regular}"):
                inputs = [rewriter.value(value) for value in node.inputs]
                new = rewriter.add(regular, inputs, node.name, node.source)
                rewriter.replace(node.output, new.output)
                continue
        elif _is_constant(node, rewriter):
            if context.allow(f"compute {node.name}"):
                _replace_by_constants(node, rewriter)
                continue
        elif (scaled := _scaled(node)) and context.allow(f"{node.name} scales channels"):
            _scale(rewriter, node, *scaled)
            continue
        rewriter.keep(node)
    return rewriter.finish()


def is_identity(node: Node) -> bool:
    """Whether a node gives its first operand unchanged."""
    op = node.op
    same = bool(node.inputs) and node.inputs[0].type == node.outputs[0].type
    if isinstance(op, (Identity, Dropout)):
        return True
    if isinstance(op, (Reshaping, AdaptiveAvgPool2d)):
        return same
    if isinstance(op, Indexed):
        return same and op.index_map(node.inputs[0].shape).is_identity(node.inputs[0].shape)
    if isinstance(op, Concat):
        return len(node.inputs) == 1
    if isinstance(op, Windowed):
        window = op.window()
        known = window.chooses or window.averages
        plain = known and window.taps == 1 and window.divisor in (None, 1)
        return plain and same and all(a.stride == 1 and a.padding == (0, 0) for a in window.axes)
    return False


def _scaled(node: Node) -> tuple[Value, Constant] | None:
    """What a product with a constant for each channel scales, and that constant; a product of
    whole numbers stays, for a scale is a fused multiply-add."""
    if not isinstance(node.op, Mul) or node.output.type.rank != 4:
        return None
    if node.output.dtype not in FLOATS:
        return None
    channels = node.output.shape[1]
    for value, other in (node.inputs, reversed(node.inputs)):
        vector = other.shape in ((channels, 1, 1), (1, channels, 1, 1))
        if vector and isinstance(other, Constant) and value.type == node.output.type:
            return (value, other) if other.dtype == value.dtype else None
    return None


def _scale(rewriter: Rewriter, node: Node, value: Value, factor: Constant) -> None:
    type = TensorType((value.shape[1],), factor.dtype)
    constants = (
        Constant(type, f"{node.name}.scale", lambda: factor.data.reshape(-1)),
        # Adding -0 leaves every product as it is; adding 0 would turn -0 into 0.
        Constant(type, f"{node.name}.shift", lambda: np.full_like(factor.data, -0.0).reshape(-1)),
    )
    new = rewriter.add(ScaleShift(), [rewriter.value(value), *constants], node.name, node.source)
    rewriter.replace(node.output, new.output)


def _whole_joins(graph: Graph, context: Context) -> Graph:
    rewriter = Rewriter(graph)
    joined: dict[Value, list[Value]] = {}
    parts = _parts_of_joins(graph)
    for node in graph.nodes:
        if node in parts and context.allow(f"join {node.name} with the next"):
            joined[node.output] = _operands(node, rewriter, joined)
            rewriter.changes += 1
        elif any(value in joined for value in node.inputs):
            new = rewriter.add(node.op, _operands(node, rewriter, joined), node.name, node.source)
            rewriter.replace(node.output, new.output)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _parts_of_joins(graph: Graph) -> set[Node]:
    """Joins that only other joins along the same axis read, all of which are, or become, parts of
    one join."""
    whole: dict[Node, Node] = {}  # the join that each becomes part of
    for node in reversed(graph.nodes):
        readers = graph.readers.get(node.outputs[0], ())
        wholes = {whole.get(reader, reader) for reader in readers}
        continued = all(_continues(node, reader) for reader in readers)
        if len(wholes) == 1 and continued and node.outputs[0] not in graph.results:
            (whole[node],) = wholes
    return set(whole)


def _continues(join: Node, reader: Node) -> bool:
    """Whether both are joins along one axis."""
    if not isinstance(join.op, Concat) or not isinstance(reader.op, Concat):
        return False
    rank = join.output.type.rank
    return join.op.axis % rank == reader.op.axis % rank and len(reader.inputs) > 1


def _operands(node: Node, rewriter: Rewriter, joined: dict[Value, list[Value]]) -> list[Value]:
    """A join's operands in the new graph, those of the joins among them in their place."""
    return [value for old in node.inputs for value in joined.get(old, [rewriter.value(old)])]


def _regular(node: Node, target: Target) -> Operator | None:
    """The kind of average for which there are kernels: long windows are adaptive ones.  Where
    kernels are those of any size, an average is of one kind for all."""
    if target.any_size:
        return None
    if isinstance(node.op, AdaptiveAvgPool2d):
        return node.op.regular(node.inputs[0].type)
    if isinstance(node.op, AvgPool2d):
        return node.op.adaptive(node.inputs[0].type)
    return None


def _is_constant(node: Node, rewriter: Rewriter) -> bool:
    """Whether a node's outputs become constants: nothing that it reads depends on an input, and
    they are not so large that a few bytes of a file would fill the memory."""
    known = all(isinstance(rewriter.value(value), Constant) for value in node.inputs)
    read = sum(value.type.bytes for value in node.inputs)
    return known and sum(v.type.bytes for v in node.outputs) <= FOLDED_BYTES + 4 * read


def _replace_by_constants(node: Node, rewriter: Rewriter) -> None:
    operands = tuple(v for v in map(rewriter.value, node.inputs) if isinstance(v, Constant))
    for i, value in enumerate(node.outputs):
        data = partial(_compute, node.op, operands, i)
        rewriter.replace(value, Constant(value.type, f"{value.name}.value", data))


def _compute(op: Operator, operands: tuple[Constant, ...], index: int) -> np.ndarray:
    return op.reference(*(operand.data for operand in operands))[index]


def drop_dead(graph: Graph, context: Context) -> Graph:
    """The graph without the nodes that nobody reads."""
    rewriter = Rewriter(graph)
    for node in _without_dead(graph, context, rewriter):
        rewriter.keep(node)
    return rewriter.finish()


def _without_dead(graph: Graph, context: Context, rewriter: Rewriter) -> list[Node]:
    """The nodes that some result depends on, in order."""
    needed = {value.producer for value in graph.results}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node in needed or not context.allow(f"drop {node.name}, which nobody reads"):
            kept.append(node)
            needed.update(value.producer for value in node.inputs)
        else:
            rewriter.changes += 1
    return kept[::-1]


def no_joins_of_joins(graph: Graph) -> Iterator[str]:
    parts = _parts_of_joins(graph)
    for node in graph.nodes:
        if node in parts:
            yield f"the join {node.name!r} is only read by another join along its axis"


def no_identities(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if is_identity(node):
            yield f"node {node.name!r} ({node.op}) is an identity"


def no_dead_nodes(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if not any(graph.readers[v] or v in graph.results for v in node.outputs):
            yield f"nobody reads node {node.name!r}"


SIMPLIFY = Pass("simplify", simplify, ensures=(no_identities, no_joins_of_joins, no_dead_nodes))


#: Joins by axis and operands, in the graph as it was.
_Known = Mapping[tuple[int, tuple[Value, ...]], Node]


def share_joins(graph: Graph, context: Context) -> Graph:
    """A join that begins with what another one joins reads that one's result.

    Networks are written in both ways: DenseNet's layers join all values so far (torchvision), or
    the join before and one value more (the zoo's).  In the second, a value is an operand of one
    join only, which can lie in one buffer with those that it begins with, and what computes a
    join's rows has two operands to read instead of dozens.
    Handles: joins along the same axis, the other one being computed before; the longest such
    beginning counts.  Joins of the very same values become one.
    Refuses: joins that share other operands than the first ones.
    """
    rewriter = Rewriter(graph)
    known: dict[tuple[int, tuple[Value, ...]], Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, Concat):
            begin = _begin(node, known)
            if begin is not None and context.allow(f"begin {node.name} with {begin.name}"):
                _begin_with(rewriter, node, begin)
            else:
                rewriter.keep(node)
            known.setdefault((_axis(node), node.inputs), node)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _axis(node: Node) -> int:
    assert isinstance(node.op, Concat)
    return node.op.axis % node.output.type.rank


def _begin(node: Node, known: _Known) -> Node | None:
    """The join of the most operands with which ``node`` begins."""
    for count in range(len(node.inputs), 1, -1):
        found = known.get((_axis(node), node.inputs[:count]))
        if found is not None:
            return found
    return None


def _begin_with(rewriter: Rewriter, node: Node, begin: Node) -> None:
    first = rewriter.value(begin.output)
    rest = [rewriter.value(value) for value in node.inputs[len(begin.inputs) :]]
    if rest:
        first = rewriter.add(node.op, [first, *rest], node.name, node.source).output
    rewriter.replace(node.output, first)


def _no_joins_twice(graph: Graph) -> Iterator[str]:
    known: dict[tuple[int, tuple[Value, ...]], Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, Concat):
            begin = _begin(node, known)
            if begin is not None:
                yield f"the join {node.name!r} begins with what {begin.name!r} joins"
            known[_axis(node), node.inputs] = node


SHARE_JOINS = Pass("share_joins", share_joins, requires=("simplify",), ensures=(_no_joins_twice,))
