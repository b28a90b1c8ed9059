"""batch_tiling: batch tiling; groups of nodes are computed one image after another.

When a batch is computed layer by layer, the result of a layer has left the caches before the next
layer reads it.  A group of consecutive nodes runs image by image instead: one worker computes an
image from the group's first node to its last, so that intermediate values stay in the cache that
the workers share.  In return, weights are read once an image, and convolutions of small images
reuse them less; so groups are chosen by predicted time.

Handles: graphs with batches of at least as many images as the device has workers.  Groups are the
disjoint runs of consecutive nodes with the largest sum of savings, found by dynamic programming.
Refuses: nodes that the target refuses; values of other batch sizes or ranks than 4; runs whose
weights and images do not fit the shared cache; everything under strategies that fuse no stacks;
and all groups if the buffers of each worker would exceed the memory limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from minidnn.fusion.collapse import NO_STACKS
from minidnn.fusion.device import Device
from minidnn.fusion.region import Region
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Contraction
from minidnn.graph.operators import Concat
from minidnn.memory import Annotations, storage_roots, touched
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.recompute import needed_bytes

HIDDEN = 0.7
"""Overlap of computing and memory traffic in a contraction, as a fraction of the shorter one."""

NEAR = 8
"""A value of at most 1 / ``NEAR`` of the shared cache is still there when the next layer reads it,
even if whole batches are computed."""


def batch_tiling(graph: Graph, context: Context) -> Graph:
    """See the module."""
    device = context.target.device
    batch = graph.inputs[0].type.plane[0] if graph.inputs else 0
    if context.strategy in NO_STACKS or not device.shared_bytes or batch < max(2, device.workers):
        return graph
    costs = [_cost(node, batch, context) for node in graph.nodes]
    groups = []
    for run in _best(costs, _uses(graph, context.annotations, costs), device):
        group = graph.nodes[run.start : run.stop]
        if not context.allow(f"compute {group[0].name} to {group[-1].name} image after image"):
            break
        groups.append(group)
    without_groups = context.annotations
    context.annotations = replace(without_groups, groups=tuple(groups))
    if groups and context.memory_limit is not None:
        bytes_without = needed_bytes(graph, replace(context, annotations=without_groups))
        if needed_bytes(graph, context) > max(context.memory_limit, bytes_without):
            context.annotations = without_groups
    return graph


@dataclass(frozen=True)
class _Cost:
    """How the time of a node changes when it is computed image by image.

    Attributes:
        loss: seconds that it takes longer if all values are in memory, not in the cache.
        gains: seconds that it saves for each of the node's values that is in the cache.
        weights: bytes of weights that every image reads again.
        image: bytes of the node's values, for one image.
    """

    loss: float
    gains: dict[Value, float]
    weights: int
    image: int


def _cost(node: Node, batch: int, context: Context) -> _Cost | None:
    """The cost of computing a node image by image; None if it has to compute whole batches."""
    target, device = context.target, context.target.device
    body = node.op.body.nodes if isinstance(node.op, Region) else (node,)
    constants = dict.fromkeys(v for n in body for v in n.inputs if isinstance(v, Constant))
    values = dict.fromkeys((*node.tensors, *node.outputs))
    if target.refuse_batch_tiling(node) is not None:
        return None
    if any(v.type.rank != 4 or v.shape[0] != batch for v in values):
        return None
    if any(v.type.rank == 4 and v.shape[0] == batch and _is_operand(v, body) for v in constants):
        return None
    if isinstance(node.op, Concat) and not any(context.annotations.copied(node)):
        return _Cost(0.0, {}, 0, 0)
    weights = target.weight_bytes(node)
    hidden = HIDDEN if any(isinstance(n.op, Contraction) for n in body) else 0.0
    compute = target.compute_seconds(node)
    in_cache = {v: v.type.bytes / device.shared_bandwidth for v in values}
    in_memory = {
        v: in_cache[v]
        if NEAR * v.type.bytes <= device.shared_bytes
        else v.type.bytes / device.bandwidth
        for v in values
    }

    def seconds(moving: float) -> float:
        return compute + moving - hidden * min(compute, moving)

    of_batch = seconds(sum(in_memory.values()) + weights / device.bandwidth)
    weight_seconds = batch * weights / device.shared_bandwidth
    idle = ceil(batch / device.workers) * device.workers / batch
    from_memory = idle * seconds(sum(in_memory.values()) + weight_seconds)
    from_cache = idle * seconds(sum(in_cache.values()) + weight_seconds)
    saved = {v: in_memory[v] - in_cache[v] for v in values}
    total_saved = sum(saved.values()) or 1.0
    gains = {
        v: (from_memory - from_cache) * saved_seconds / total_saved
        for v, saved_seconds in saved.items()
    }
    return _Cost(from_memory - of_batch, gains, weights, sum(v.type.bytes for v in values) // batch)


def _is_operand(value: Constant, body: Sequence[Node]) -> bool:
    """Whether a constant is a tensor operand, with a slice for each image, and no weight."""
    return any(
        value in node.inputs and (not isinstance(node.op, Contraction) or value is node.inputs[0])
        for node in body
    )


@dataclass(frozen=True)
class _Use:
    """A node's use of a storage.

    Attributes:
        root: the value that owns the storage.
        gain: seconds that the node saves if the storage is in the cache.
        begin, end: positions of the first and the last node that use the storage; ``end`` is None
            for inputs and outputs of the graph.
    """

    root: Value
    gain: float
    begin: int
    end: int | None


def _uses(
    graph: Graph, annotations: Annotations, costs: Sequence[_Cost | None]
) -> list[list[_Use]]:
    """For each node, the storages that it uses."""
    roots, lives = storage_roots(graph, annotations), touched(graph, annotations)
    uses = []
    for cost in costs:
        gains: dict[Value, float] = {}
        for value, gain in cost.gains.items() if cost is not None else ():
            gains[roots[value]] = gains.get(roots[value], 0.0) + gain
        uses.append([_Use(r, gain, *lives.get(r, (0, None))) for r, gain in gains.items()])
    return uses


def _best(
    costs: Sequence[_Cost | None], uses: Sequence[Sequence[_Use]], device: Device
) -> list[range]:
    """The disjoint runs of nodes with the largest sum of savings."""
    count = len(costs)
    # For each position: the most seconds that runs of the nodes before it save, and these runs.
    best: list[tuple[float, list[range]]] = [(0.0, [])] * (count + 1)
    for first in range(count):
        seconds, runs = best[first]
        if seconds >= best[first + 1][0]:
            best[first + 1] = best[first]
        for length, saved in enumerate(_savings(costs, uses, first, device), 1):
            stop = first + length
            if length > 1 and saved > 0 and seconds + saved > best[stop][0]:
                best[stop] = seconds + saved, [*runs, range(first, stop)]
    return best[-1][1]


def _savings(
    costs: Sequence[_Cost | None],
    uses: Sequence[Sequence[_Use]],
    first: int,
    device: Device,
) -> list[float]:
    """The seconds that runs from ``first`` on save: of one node, of two nodes, and so on.

    Each use of a storage after the first finds it in the cache; the first one as well if only the
    run uses the storage, which then never goes to memory.
    """
    savings: list[float] = []
    saved, weights, image = 0.0, 0, 0
    first_gains: dict[Value, float] = {}
    for last in range(first, len(costs)):
        cost = costs[last]
        if cost is None:
            break
        weights += cost.weights
        image = max(image, cost.image)
        if weights + device.workers * image > device.shared_bytes:
            break
        saved -= cost.loss
        for use in uses[last]:
            if use.root in first_gains:
                saved += use.gain
            else:
                first_gains[use.root] = use.gain
            if use.begin >= first and use.end == last:
                saved += first_gains[use.root]
        savings.append(saved)
    return savings


BATCH_TILING = Pass(
    "batch_tiling", batch_tiling, requires=("layout", "concat_in_place", "schedule")
)
