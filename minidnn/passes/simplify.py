"""Basic cleanups: constant states, constant folding, identities, dead code and concatenations.

``freeze`` makes constants of states; ``simplify`` removes identities and dead nodes and folds
constants; ``share_concats`` lets a concatenation read one of its prefixes.
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

    Handles: every state that the graph does not update becomes a constant of its initial array, so
    that later passes see a graph as it is recorded without states.  The pass is no optimization,
    and takes no fuel.
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


#: Bytes that folded outputs of a node may take, in addition to 4 times the bytes that it reads.
FOLDED_BYTES = 256 << 20


def simplify(graph: Graph, context: Context) -> Graph:
    """Removes identities and dead nodes, folds constants, and merges nested concatenations.

    Handles: identities (Identity, Dropout, windows of one position, reshapes to the same shape,
    adaptive pooling to the input's size, concatenations of one value, moves that keep all elements
    in place); adaptive pooling whose sizes divide, which becomes a regular window if it is short,
    and long adjacent regular windows, which become adaptive; products with a constant for each
    channel, which become a ScaleShift; concatenations that only concatenations along the same axis
    read, which are merged; nodes whose operands are all constants, unless their outputs are very
    large; dead nodes.
    Refuses: arithmetic identities such as x * 1, which are not exact for NaN payloads and -0.  Only
    the sign of zero may change: an average over one position adds -0 to 0, which gives 0.
    """
    # Concatenations come last: their readers may have been removed.
    return _merged_concats(_fewer_nodes(graph, context), context)


def _fewer_nodes(graph: Graph, context: Context) -> Graph:
    """The graph without identities and dead nodes, and with constants folded."""
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
    same_type = bool(node.inputs) and node.inputs[0].type == node.outputs[0].type
    if isinstance(op, (Identity, Dropout)):
        return True
    if isinstance(op, (Reshaping, AdaptiveAvgPool2d)):
        return same_type
    if isinstance(op, Indexed):
        return same_type and op.index_map(node.inputs[0].shape).is_identity(node.inputs[0].shape)
    if isinstance(op, Concat):
        return len(node.inputs) == 1
    if isinstance(op, Windowed):
        window = op.window()
        known = window.chooses or window.averages
        copies = known and window.taps == 1 and window.divisor in (None, 1)
        return (
            copies and same_type and all(a.stride == 1 and a.padding == (0, 0) for a in window.axes)
        )
    return False


def _scaled(node: Node) -> tuple[Value, Constant] | None:
    """The value that a product scales by a constant for each channel, and that constant; None for
    other nodes, and for integers, as a ScaleShift is a fused multiply-add."""
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


def _merged_concats(graph: Graph, context: Context) -> Graph:
    """The graph with nested concatenations along one axis merged."""
    rewriter = Rewriter(graph)
    merged: dict[Value, list[Value]] = {}
    nested = _slices_of_concats(graph)
    for node in graph.nodes:
        if node in nested and context.allow(f"join {node.name} with the next"):
            merged[node.output] = _operands(node, rewriter, merged)
            rewriter.changes += 1
        elif any(value in merged for value in node.inputs):
            new = rewriter.add(node.op, _operands(node, rewriter, merged), node.name, node.source)
            rewriter.replace(node.output, new.output)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _slices_of_concats(graph: Graph) -> set[Node]:
    """Concatenations that only concatenations along the same axis read, all of which end up in one
    concatenation."""
    merged_into: dict[Node, Node] = {}  # the concatenation that each is merged into
    for node in reversed(graph.nodes):
        readers = graph.readers.get(node.outputs[0], ())
        targets = {merged_into.get(reader, reader) for reader in readers}
        continued = all(_are_along_one_axis(node, reader) for reader in readers)
        if len(targets) == 1 and continued and node.outputs[0] not in graph.results:
            (merged_into[node],) = targets
    return set(merged_into)


def _are_along_one_axis(concat: Node, reader: Node) -> bool:
    """Whether both are concatenations along one axis."""
    if not isinstance(concat.op, Concat) or not isinstance(reader.op, Concat):
        return False
    rank = concat.output.type.rank
    return concat.op.axis % rank == reader.op.axis % rank and len(reader.inputs) > 1


def _operands(node: Node, rewriter: Rewriter, merged: dict[Value, list[Value]]) -> list[Value]:
    """The operands of a concatenation in the new graph, with merged ones replaced by their own."""
    return [value for old in node.inputs for value in merged.get(old, [rewriter.value(old)])]


def _regular(node: Node, target: Target) -> Operator | None:
    """The operator for an average pool for which there is a faster kernel: adaptive for long
    windows, regular for short ones; None to keep it, as always where kernels are those of any
    size, so that all sizes have the same operator."""
    if target.any_size:
        return None
    if isinstance(node.op, AdaptiveAvgPool2d):
        return node.op.regular(node.inputs[0].type)
    if isinstance(node.op, AvgPool2d):
        return node.op.adaptive(node.inputs[0].type)
    return None


def _is_constant(node: Node, rewriter: Rewriter) -> bool:
    """Whether a node can be folded: all operands are constants, and the outputs are not so large
    that a few bytes of a file would fill the memory."""
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
    """The graph without dead nodes."""
    rewriter = Rewriter(graph)
    for node in _without_dead(graph, context, rewriter):
        rewriter.keep(node)
    return rewriter.finish()


def _without_dead(graph: Graph, context: Context, rewriter: Rewriter) -> list[Node]:
    """The nodes on which some result depends, in order."""
    needed = {value.producer for value in graph.results}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node in needed or not context.allow(f"drop {node.name}, which nobody reads"):
            kept.append(node)
            needed.update(value.producer for value in node.inputs)
        else:
            rewriter.changes += 1
    return kept[::-1]


def flatten_concats(graph: Graph) -> Iterator[str]:
    parts = _slices_of_concats(graph)
    for node in graph.nodes:
        if node in parts:
            yield f"the concatenation {node.name!r} is only read by another along its axis"


def no_identities(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if is_identity(node):
            yield f"node {node.name!r} ({node.op}) is an identity"


def no_dead_nodes(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if not any(map(graph.is_read, node.outputs)):
            yield f"nobody reads node {node.name!r}"


SIMPLIFY = Pass("simplify", simplify, ensures=(no_identities, flatten_concats, no_dead_nodes))


#: Concatenations of the old graph, by axis and operands.
_Known = Mapping[tuple[int, tuple[Value, ...]], Node]


def share_concats(graph: Graph, context: Context) -> Graph:
    """A concatenation that begins with all operands of another one reads that one's result.

    Networks are written in both ways: DenseNet's layers concatenate all values so far
    (torchvision), or the concatenation before and one more value (the zoo's).  In the second form,
    each value is an operand of one concatenation, so that all of them can be views of one buffer,
    and a kernel that computes a concatenation has two operands to read instead of dozens.
    Handles: concatenations along the same axis, of which the shorter is computed before; the
    longest such prefix counts.  Concatenations of the very same values become one.
    Refuses: concatenations that share other operands than the first ones.
    """
    rewriter = Rewriter(graph)
    known: dict[tuple[int, tuple[Value, ...]], Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, Concat):
            prefix = _begin(node, known)
            if prefix is not None and context.allow(f"begin {node.name} with {prefix.name}"):
                _read_prefix(rewriter, node, prefix)
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
    """The concatenation of the most operands with which ``node`` begins; None if there is none."""
    for count in range(len(node.inputs), 1, -1):
        prefix = known.get((_axis(node), node.inputs[:count]))
        if prefix is not None:
            return prefix
    return None


def _read_prefix(rewriter: Rewriter, node: Node, prefix: Node) -> None:
    result = rewriter.value(prefix.output)
    rest = [rewriter.value(value) for value in node.inputs[len(prefix.inputs) :]]
    if rest:
        result = rewriter.add(node.op, [result, *rest], node.name, node.source).output
    rewriter.replace(node.output, result)


def _no_shared_prefixes(graph: Graph) -> Iterator[str]:
    known: dict[tuple[int, tuple[Value, ...]], Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, Concat):
            prefix = _begin(node, known)
            if prefix is not None:
                yield f"the concatenation {node.name!r} begins with that of {prefix.name!r}"
            known[_axis(node), node.inputs] = node


SHARE_CONCATS = Pass(
    "share_concats", share_concats, requires=("simplify",), ensures=(_no_shared_prefixes,)
)
