"""Passes over the channel axis: moves, vectors and normalizations of channels.

``take_channels`` merges moves of channels into one TakeChannels; ``view_channels`` gives vectors
over channels the rank that stacks expect; ``normalize_channels`` fuses a layer normalization over
channels with the transposes around it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from minidnn.fusion.collapse import NO_STACKS, UNFUSED
from minidnn.fusion.region import FusedNormalization
from minidnn.fusion.stacks import Groups
from minidnn.fusion.target import Proposal, Target
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Reshaping
from minidnn.graph.operators import Concat, LayerNorm, Slice, Take, TakeChannels, Transpose, View
from minidnn.graph.types import FLOATS
from minidnn.passes.fuse import fusion
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.linear import FIRST, LAST

MOST_CHANNELS = 1 << 16
"""Channels of a value that ``take_channels`` tracks."""

Picks = tuple[tuple[Value, int], ...]
"""The source of each channel, and which of its channels it is."""


def take_channels(graph: Graph, context: Context) -> Graph:
    """Chains of channel moves become one TakeChannels of the values that were computed.

    Networks that shuffle or split channels write it as several moves: ShuffleNet's unit as a
    concatenation, a view, a transpose, a view and two slices.  Each reads and writes a whole value,
    and only the concatenation can do so channels last, the layout that convolutions prefer.
    Handles: views, transposes, slices, takes, concatenations and TakeChannels that leave batch,
    rows and columns as they are.  Other nodes that read their result read one TakeChannels, the
    same one wherever the same channels are read, or the source itself if it has exactly these
    channels.  Sources are values that no such move computes, so that a value that passes through
    several units unchanged is not copied in each.
    Refuses: concatenations with other readers (``concat_in_place`` has their operands written in
    place), picks from more values than TakeChannels takes, moves of other axes, constants and
    integers; everything under the strategies "layers" and "cudnn", which fuse nothing.
    """
    if context.strategy in UNFUSED:
        return graph
    moves = _moves(graph, context)
    rewriter = Rewriter(graph)
    channels = _Channels()
    picked: dict[Picks, Value] = {}
    for node in graph.nodes:
        if node not in moves:
            rewriter.keep(node)
            continue
        numbers = channels.moved(node)
        assert numbers is not None
        channels.found[node.output] = numbers
        if _is_read(graph, node.output, moves):
            picks = channels.picks(numbers)
            if picks not in picked:
                picked[picks] = _picked(rewriter, node, picks)
            rewriter.replace(node.output, picked[picks])
        else:
            rewriter.changes += 1
    return rewriter.finish()


def _moves(graph: Graph, context: Context) -> set[Node]:
    """The moves of channels that are replaced."""
    moves = _replaceable_moves(graph, set())
    refused = {
        node
        for node in graph.nodes
        if node in moves and not context.allow(f"pick channels instead of {node.name} ({node.op})")
    }
    return _replaceable_moves(graph, refused) if refused else moves


def _replaceable_moves(graph: Graph, staying: set[Node]) -> set[Node]:
    """The moves of channels that can be replaced, if those in ``staying`` are kept: without moves
    whose result other nodes read and no TakeChannels can compute."""
    while True:
        channels = _Channels()
        moves: set[Node] = set()
        for node in graph.nodes:
            numbers = None if node in staying else channels.moved(node)
            if numbers is not None:
                channels.found[node.output] = numbers
                moves.add(node)
        must_stay = {
            node
            for node in moves
            if _is_read(graph, node.output, moves)
            and (
                node.output.type.rank != 4
                or isinstance(node.op, Concat)
                or len(_sources(channels.picks(channels.found[node.output]))) > TakeChannels.MOST
            )
        }
        if not must_stay:
            return moves
        staying = staying | must_stay


def _is_read(graph: Graph, value: Value, moves: set[Node]) -> bool:
    """Whether a value is a result of the graph, or read by a node that is not in ``moves``."""
    return value in graph.results or any(r not in moves for r in graph.readers[value])


class _Channels:
    """Tracks the channels of moved values.

    Each channel of a source has a number of its own.  A value of shape (N, ..., H, W) has an array
    of these numbers, in the shape of the axes between N and H.
    """

    def __init__(self) -> None:
        #: The numbers of the channels of values that moves compute.
        self.found: dict[Value, np.ndarray] = {}
        #: The number of the first channel of each source, and the next number that is free.
        self._sources: dict[Value, int] = {}
        self._free = 0

    def picks(self, found: np.ndarray) -> Picks:
        """The source of each of these numbers, and the channel of the source."""
        sources, firsts = list(self._sources), list(self._sources.values())
        numbers = found.ravel().tolist()
        places = np.searchsorted(firsts, numbers, "right").tolist()
        return tuple(
            (sources[place - 1], number - firsts[place - 1])
            for place, number in zip(places, numbers, strict=True)
        )

    def moved(self, node: Node) -> np.ndarray | None:
        """The numbers of the channels of a node's output; None unless it only moves channels."""
        op = node.op
        if not isinstance(op, (Reshaping, Transpose, Slice, Take, TakeChannels, Concat)):
            return None
        numbers = [self._of(value) for value in node.inputs]
        tracked = [channels for channels in numbers if channels is not None]
        shape, out_shape = node.inputs[0].shape, node.output.shape
        if len(tracked) < len(numbers) or len(out_shape) < 4 or 0 in out_shape:
            return None
        rank = len(shape)
        if isinstance(op, Concat):
            axis = op.axis % rank
            return np.concatenate(tracked, axis - 1) if 1 <= axis < rank - 2 else None
        if isinstance(op, TakeChannels):
            return np.array([tracked[source][channel] for source, channel in op.picks])
        (channels,) = tracked
        if (shape[0], *shape[-2:]) != (out_shape[0], *out_shape[-2:]):
            return None
        if isinstance(op, Reshaping):
            return channels.reshape(out_shape[1:-2])
        outer = (0, rank - 2, rank - 1)
        if isinstance(op, Transpose):
            if any(op.dims[axis] != axis for axis in outer):
                return None
            return channels.transpose([d - 1 for d in op.dims[1:-2]])
        indices = [_kept(op, axis, shape[axis]) for axis in range(rank)]
        keeps_planes = all(np.array_equal(indices[axis], np.arange(shape[axis])) for axis in outer)
        if not keeps_planes or any((along_axis < 0).any() for along_axis in indices):
            return None
        return channels[np.ix_(*indices[1:-2])]

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
    """Whether channels of a value are tracked: it is a float value of rank 4, and no constant."""
    if isinstance(value, Constant) or value.dtype not in FLOATS:
        return False
    return value.type.rank == 4 and 0 not in value.shape and value.shape[1] <= MOST_CHANNELS


def _sources(picks: Picks) -> list[Value]:
    return list(dict.fromkeys(source for source, _ in picks))


def _kept(op: Slice | Take, axis: int, size: int) -> np.ndarray:
    """The indices of an axis that an operator keeps; -1 for elements that a Take fills."""
    if isinstance(op, Slice):
        return op.starts[axis] + op.steps[axis] * np.arange(op.sizes[axis])
    chosen = op.indices[axis]
    return np.arange(size) if chosen is None else np.array(chosen, np.int64)


def _picked(rewriter: Rewriter, node: Node, picks: Picks) -> Value:
    """The value with these channels: a source, a Concat of sources, or a TakeChannels."""
    sources = _sources(picks)
    inputs = [rewriter.value(source) for source in sources]
    all_channels = tuple(
        (source, channel) for source in sources for channel in range(source.shape[1])
    )
    if all_channels == picks:
        if len(inputs) == 1:
            return inputs[0]
        return rewriter.add(Concat(1), inputs, node.name, node.source).output
    numbers = {source: number for number, source in enumerate(sources)}
    op = TakeChannels(tuple((numbers[source], channel) for source, channel in picks))
    return rewriter.add(op, inputs, node.name, node.source).output


def no_picks_of_picks(graph: Graph) -> Iterator[str]:
    """A TakeChannels reads sources, not results of another TakeChannels, unless it would read too
    many."""
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
    """Vectors over channels get the rank of the value that they scale, so that stacks take them.

    NumPy's rules broadcast a value of shape (C, 1, 1), as layer scales have it, over images.  It is
    an operand of another rank, which no stack supports.

    Handles: operands of element-wise operators on (N, C, H, W) that have the shape (C, 1, 1): they
    are viewed as (1, C, 1, 1).
    Refuses: other operands of lower rank; everything under strategies that fuse no stacks.
    """
    if context.strategy in NO_STACKS:
        return graph
    rewriter = Rewriter(graph)
    views: dict[Value, Value] = {}
    for node in graph.nodes:
        places = [i for i, value in enumerate(node.inputs) if _is_of_channels(node, value)]
        if not places or not context.allow(f"{node.name} takes numbers of channels in its rank"):
            rewriter.keep(node)
            continue
        operands = [rewriter.value(value) for value in node.inputs]
        for i in places:
            operand = operands[i]
            if operand not in views:
                name = rewriter.fresh(f"{operand.name}.channels")
                view = rewriter.add(View((1, *operand.shape)), [operand], name, node.source)
                views[operand] = view.output
            operands[i] = views[operand]
        new = rewriter.add(node.op, operands, node.name, node.source)
        rewriter.replace(node.output, new.output)
    return rewriter.finish()


def _is_of_channels(node: Node, value: Value) -> bool:
    """Whether an operand of an element-wise node has the shape (C, 1, 1), and the result rank 4."""
    if not isinstance(node.op, Elementwise) or node.output.type.rank != 4:
        return False
    return value.shape == (node.output.shape[1], 1, 1)


VIEW_CHANNELS = Pass("view_channels", view_channels)


def normalize_channels(groups: Groups, target: Target) -> Iterator[Proposal]:
    """Layer normalizations over channels are computed without transposes.

    Layer normalization normalizes the last axis.  Networks that normalize the channels of images
    transpose for it, and back: two copies of a value, which take longer than the normalization.

    Handles: a LayerNorm of the last axis between a Transpose from (N, C, H, W) to (N, H, W, C) and
    one back, of which each is the only reader of the one before.
    Refuses: whatever the target refuses (noted with its reason); everything under strategies that
    fuse no stacks.
    """
    for node in groups.graph.nodes:
        if (nodes := _moved(groups.graph, node)) is not None:
            yield Proposal(
                nodes,
                FusedNormalization,
                f"{node.name} normalizes channels where they lie",
                node,
                "channels are moved for it",
            )


def _moved(graph: Graph, node: Node) -> tuple[Node, Node, Node] | None:
    """A layer normalization with the two transposes around it; None if it has none."""
    if not isinstance(node.op, LayerNorm) or node.op.axes != 1:
        return None
    before, after = node.inputs[0].producer, graph.only_reader(node.output)
    if before is None or after is None or graph.only_reader(before.output) is not node:
        return None
    moves = isinstance(before.op, Transpose) and isinstance(after.op, Transpose)
    if not moves or (before.op.dims, after.op.dims) != (LAST, FIRST):  # type: ignore[attr-defined]
        return None
    return before, node, after


NORMALIZE_CHANNELS = fusion("normalize_channels", normalize_channels, ("linear_to_conv",))
