"""Vectors and normalizations of channels as stacks take them, and channels that are taken."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minidnn.fusion.collapse import APART, UNFUSED
from minidnn.fusion.region import FusedNormalization
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Reshaping
from minidnn.graph.operators import Concat, LayerNorm, Slice, Take, TakeChannels, Transpose, View
from minidnn.graph.types import FLOATS
from minidnn.passes.contract import contract
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.linear import FIRST, LAST

MOST_CHANNELS = 1 << 16
"""Of a value whose channels are followed one by one."""

Picks = tuple[tuple[Value, int], ...]
"""The source of each channel, and which of its channels it is."""


def take_channels(graph: Graph, context: Context) -> Graph:
    """Channels are picked from where they were computed, in one move.

    Networks that shuffle or split channels write it as several moves: ShuffleNet's unit as a join,
    a view of another shape, a transpose, a view and two slices.  Each reads and writes a whole
    value, and none but the join can do so with channels side by side, where convolutions want them.
    Handles: views, transposes, slices, takes, joins and picks that leave images, rows and columns
    as they are.  What else reads their result reads one TakeChannels, the same wherever the same
    channels are read, or the value itself where that has these channels.  What is picked of is what
    no such move made, so that a value that passes through several units unchanged is not copied in
    each.
    Refuses: joins that anything else reads (place_concat has their operands written in place),
    picks of more values than TakeChannels takes, moves of other axes, constants, whole numbers;
    everything under the strategies "layers" and "cudnn".
    """
    if context.strategy in UNFUSED:
        return graph
    moves = _moves(graph, context)
    rewriter = Rewriter(graph)
    channels = _Channels()
    made: dict[Picks, Value] = {}
    for node in graph.nodes:
        if node not in moves:
            rewriter.keep(node)
            continue
        found = channels.moved(node)
        assert found is not None
        channels.found[node.output] = found
        if _is_read(graph, node.output, moves):
            picks = channels.picks(found)
            if picks not in made:
                made[picks] = _picked(rewriter, node, picks)
            rewriter.replace(node.output, made[picks])
        else:
            rewriter.changes += 1
    return rewriter.finish()


def _moves(graph: Graph, context: Context) -> set[Node]:
    """The moves of channels that become part of what reads them."""
    moves = _settled(graph, set())
    refused = {
        node
        for node in graph.nodes
        if node in moves and not context.allow(f"pick channels instead of {node.name} ({node.op})")
    }
    return _settled(graph, refused) if refused else moves


def _settled(graph: Graph, staying: set[Node]) -> set[Node]:
    """The moves of channels without those that stay as they are, and without what must stay for
    what reads it."""
    while True:
        channels = _Channels()
        moves: set[Node] = set()
        for node in graph.nodes:
            found = None if node in staying else channels.moved(node)
            if found is not None:
                channels.found[node.output] = found
                moves.add(node)
        more = {
            node
            for node in moves
            if _is_read(graph, node.output, moves)
            and (
                node.output.type.rank != 4
                or isinstance(node.op, Concat)
                or len(_sources(channels.picks(channels.found[node.output]))) > TakeChannels.MOST
            )
        }
        if not more:
            return moves
        staying = staying | more


def _is_read(graph: Graph, value: Value, moves: set[Node]) -> bool:
    """Whether anything reads a value that is no move of channels."""
    return value in graph.results or any(r not in moves for r in graph.readers[value])


class _Channels:
    """Where the channels of values come from, as numbers: each of a source has one of its own.

    A value of shape (N, ..., H, W) has an array of the shape between N and H.
    """

    def __init__(self) -> None:
        #: Of values that are moved.
        self.found: dict[Value, np.ndarray] = {}
        #: Sources, and the number of the first channel of each; the first that is free behind them.
        self._sources: dict[Value, int] = {}
        self._free = 0

    def picks(self, found: np.ndarray) -> Picks:
        """The sources and channels that these numbers are."""
        sources, firsts = list(self._sources), list(self._sources.values())
        numbers = found.ravel().tolist()
        places = np.searchsorted(firsts, numbers, "right").tolist()
        return tuple(
            (sources[place - 1], number - firsts[place - 1])
            for place, number in zip(places, numbers, strict=True)
        )

    def moved(self, node: Node) -> np.ndarray | None:
        """Where the channels of a node's output come from; None unless it moves channels alone."""
        op = node.op
        if not isinstance(op, (Reshaping, Transpose, Slice, Take, TakeChannels, Concat)):
            return None
        given = [self._of(value) for value in node.inputs]
        known = [channels for channels in given if channels is not None]
        shape, new = node.inputs[0].shape, node.output.shape
        if len(known) < len(given) or len(new) < 4 or 0 in new:
            return None
        rank = len(shape)
        if isinstance(op, Concat):
            axis = op.axis % rank
            return np.concatenate(known, axis - 1) if 1 <= axis < rank - 2 else None
        if isinstance(op, TakeChannels):
            return np.array([known[source][channel] for source, channel in op.picks])
        (channels,) = known
        if (shape[0], *shape[-2:]) != (new[0], *new[-2:]):
            return None
        if isinstance(op, Reshaping):
            return channels.reshape(new[1:-2])
        outer = (0, rank - 2, rank - 1)
        if isinstance(op, Transpose):
            if any(op.dims[axis] != axis for axis in outer):
                return None
            return channels.transpose([d - 1 for d in op.dims[1:-2]])
        kept = [_kept(op, axis, shape[axis]) for axis in range(rank)]
        whole = all(np.array_equal(kept[axis], np.arange(shape[axis])) for axis in outer)
        if not whole or any((places < 0).any() for places in kept):
            return None
        return channels[np.ix_(*kept[1:-2])]

    def _of(self, value: Value) -> np.ndarray | None:
        if value in self.found:
            return self.found[value]
        if not _may_pick(value):
            return None
        count = value.shape[1]
        if value not in self._sources:
            self._sources[value] = self._free
            self._free += count
        return self._sources[value] + np.arange(count)


def _may_pick(value: Value) -> bool:
    if isinstance(value, Constant) or value.dtype not in FLOATS:
        return False
    return value.type.rank == 4 and 0 not in value.shape and value.shape[1] <= MOST_CHANNELS


def _sources(picks: Picks) -> list[Value]:
    return list(dict.fromkeys(source for source, _ in picks))


def _kept(op: Slice | Take, axis: int, size: int) -> np.ndarray:
    """The places that it keeps of an axis; negative where it keeps none."""
    if isinstance(op, Slice):
        return op.starts[axis] + op.steps[axis] * np.arange(op.sizes[axis])
    chosen = op.indices[axis]
    return np.arange(size) if chosen is None else np.array(chosen, np.int64)


def _picked(rewriter: Rewriter, node: Node, picks: Picks) -> Value:
    """The value of those channels: a source, a join of whole sources, or picked ones."""
    sources = _sources(picks)
    inputs = [rewriter.value(source) for source in sources]
    whole = tuple((source, channel) for source in sources for channel in range(source.shape[1]))
    if whole == picks:
        if len(inputs) == 1:
            return inputs[0]
        return rewriter.add(Concat(1), inputs, node.name, node.source).output
    numbers = {source: number for number, source in enumerate(sources)}
    op = TakeChannels(tuple((numbers[source], channel) for source, channel in picks))
    return rewriter.add(op, inputs, node.name, node.source).output


def no_picks_of_picks(graph: Graph) -> Iterator[str]:
    sources: dict[Value, set[Value]] = {}  # of what picks channels, through all picks
    for node in graph.nodes:
        if not isinstance(node.op, TakeChannels) or not all(map(_may_pick, node.inputs)):
            continue
        of = set().union(*(sources.get(value, {value}) for value in node.inputs))
        if len(of) <= TakeChannels.MOST and any(value in sources for value in node.inputs):
            yield f"{node.name!r} picks channels of what picks channels"
        sources[node.output] = of


TAKE_CHANNELS = Pass(
    "take_channels", take_channels, requires=("simplify",), ensures=(no_picks_of_picks,)
)


def view_channels(graph: Graph, context: Context) -> Graph:
    """Numbers of channels get the rank of what they scale, so that stacks take them.

    NumPy's rules repeat a value of shape (C, 1, 1) over images.  As layer scales have it, it is an
    operand of another rank, which no stack computes with.

    Handles: operands of element-wise operators on (N, C, H, W) that have the shape (C, 1, 1): they
    are seen as (1, C, 1, 1).
    Refuses: other operands of fewer axes; everything under strategies that leave layers apart.
    """
    if context.strategy in APART:
        return graph
    rewriter = Rewriter(graph)
    known: dict[Value, Value] = {}
    for node in graph.nodes:
        found = [i for i, value in enumerate(node.inputs) if _is_of_channels(node, value)]
        if not found or not context.allow(f"{node.name} takes numbers of channels in its rank"):
            rewriter.keep(node)
            continue
        operands = [rewriter.value(value) for value in node.inputs]
        for i in found:
            given = operands[i]
            if given not in known:
                name = rewriter.fresh(f"{given.name}.channels")
                made = rewriter.add(View((1, *given.shape)), [given], name, node.source)
                known[given] = made.output
            operands[i] = known[given]
        new = rewriter.add(node.op, operands, node.name, node.source)
        rewriter.replace(node.output, new.output)
    return rewriter.finish()


def _is_of_channels(node: Node, value: Value) -> bool:
    """Whether an operand has a number for each channel, and an axis less than the result."""
    if not isinstance(node.op, Elementwise) or node.output.type.rank != 4:
        return False
    return value.shape == (node.output.shape[1], 1, 1)


VIEW_CHANNELS = Pass("view_channels", view_channels)


def normalize_channels(graph: Graph, context: Context) -> Graph:
    """Layer normalizations of channels are computed where the channels lie.

    Layer normalization takes the last axis.  Networks that normalize the channels of images move
    these behind rows and columns for it, and back: two copies of a value that take longer than the
    rest.

    Handles: a LayerNorm of the last axis between a Transpose from (N, C, H, W) to (N, H, W, C) and
    one back, of which each is the only reader of the one before.
    Refuses: whatever the target refuses (noted with its reason); everything under strategies that
    leave layers apart.
    """
    if context.strategy in APART:
        return graph
    regions = []
    for node in graph.nodes:
        nodes = _moved(graph, node)
        if nodes is None:
            continue
        if (reason := context.target.refuse_channel_norm(node)) is not None:
            context.notes[node.name] = f"channels are moved for it: {reason}"
        elif context.allow(f"{node.name} normalizes channels where they lie"):
            regions.append((nodes, FusedNormalization))
    return contract(graph, regions)


def _moved(graph: Graph, node: Node) -> tuple[Node, Node, Node] | None:
    """A normalization between two moves of channels; None if it is another one."""
    if not isinstance(node.op, LayerNorm) or node.op.axes != 1:
        return None
    before, after = node.inputs[0].producer, graph.only_reader(node.output)
    if before is None or after is None or graph.only_reader(before.output) is not node:
        return None
    moves = isinstance(before.op, Transpose) and isinstance(after.op, Transpose)
    if not moves or (before.op.dims, after.op.dims) != (LAST, FIRST):  # type: ignore[attr-defined]
        return None
    return before, node, after


NORMALIZE_CHANNELS = Pass("normalize_channels", normalize_channels, requires=("turn_linear",))
