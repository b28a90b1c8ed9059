"""normalize_channels: layer normalizations of channels are computed where the channels lie.

Layer normalization takes the last axis.  Networks that normalize the channels of images move these
behind rows and columns for it, and back: two copies of a value that take longer than the rest.

Handles: a LayerNorm of the last axis between a Transpose from (N, C, H, W) to (N, H, W, C) and one
back, of which each is the only reader of the one before.
Refuses: whatever the target refuses (noted with its reason); everything under strategies that
leave layers apart.
"""

from __future__ import annotations

from minidnn.fusion.collapse import APART
from minidnn.fusion.region import FusedNormalization
from minidnn.graph.ir import Graph, Node
from minidnn.graph.operators import LayerNorm, Transpose
from minidnn.passes.contract import contract
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.turn_linear import FIRST, LAST


def normalize_channels(graph: Graph, context: Context) -> Graph:
    """See the module."""
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
