"""by_image: runs of nodes are computed image after image, depth-first through the batch.

Of a batch that is computed layer by layer, a layer's result has left the caches before the next
layer reads it.  A group of consecutive nodes is run for one image after another instead, each image
by one worker from the group's first node to its last, so that what lies between them stays in the
cache that the workers share.  Weights are read once an image then, and convolutions with few pixels
share them among less: groups are chosen by predicted time.

Handles: graphs with batches of at least as many images as the device has workers.  Groups are the
disjoint runs of the graph's order with the largest sum of savings, found by dynamic programming.
Refuses: what the target refuses; values of other batch sizes or ranks than 4; runs whose weights
and images do not fit the shared cache; everything under strategies that compute layer by layer,
and where the memory of each thread would be more than a limit leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from minidnn.fusion.collapse import APART
from minidnn.fusion.device import Device
from minidnn.fusion.region import Region
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Contraction
from minidnn.graph.operators import Concat
from minidnn.memory import Annotations, storage_roots, touched
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.recompute import needed_bytes

HIDDEN = 0.7
"""Part of the smaller of computing and moving that the larger one hides, in a contraction."""

NEAR = 8
"""A value of that part of the shared cache is found there by the next layer in any case."""


def by_image(graph: Graph, context: Context) -> Graph:
    """See the module."""
    device = context.target.device
    batch = graph.inputs[0].type.plane[0] if graph.inputs else 0
    if context.strategy in APART or not device.shared_bytes or batch < max(2, device.workers):
        return graph
    costs = [_cost(node, batch, context) for node in graph.nodes]
    groups = []
    for run in _best(costs, _uses(graph, context.annotations, costs), device):
        group = graph.nodes[run.start : run.stop]
        if not context.allow(f"compute {group[0].name} to {group[-1].name} image after image"):
            break
        groups.append(group)
    apart = context.annotations
    context.annotations = replace(apart, groups=tuple(groups))
    if groups and context.memory_limit is not None:
        whole = needed_bytes(graph, replace(context, annotations=apart))
        if needed_bytes(graph, context) > max(context.memory_limit, whole):
            context.annotations = apart
    return graph


@dataclass(frozen=True)
class _Cost:
    """What computing a node image after image changes.

    Attributes:
        loss: seconds that it costs if all values still lie in memory.
        gains: seconds that it saves for each of the node's values that lies in the cache.
        weights: bytes that every image reads again.
        image: bytes of all values, for one image.
    """

    loss: float
    gains: dict[Value, float]
    weights: int
    image: int


def _cost(node: Node, batch: int, context: Context) -> _Cost | None:
    """None if the node is computed for whole batches only."""
    target, device = context.target, context.target.device
    body = node.op.body.nodes if isinstance(node.op, Region) else (node,)
    given = dict.fromkeys(v for n in body for v in n.inputs if isinstance(v, Constant))
    values = dict.fromkeys((*node.tensors, *node.outputs))
    if target.refuse_by_image(node) is not None:
        return None
    if any(v.type.rank != 4 or v.shape[0] != batch for v in values):
        return None
    if any(v.type.rank == 4 and v.shape[0] == batch and _is_operand(v, body) for v in given):
        return None
    if isinstance(node.op, Concat) and not any(context.annotations.copied(node)):
        return _Cost(0.0, {}, 0, 0)
    weights = target.weight_bytes(node)
    hidden = HIDDEN if any(isinstance(n.op, Contraction) for n in body) else 0.0
    compute = target.compute_seconds(node)
    near = {v: v.type.bytes / device.shared_bandwidth for v in values}
    far = {
        v: near[v]
        if NEAR * v.type.bytes <= device.shared_bytes
        else v.type.bytes / device.bandwidth
        for v in values
    }

    def seconds(moving: float) -> float:
        return compute + moving - hidden * min(compute, moving)

    whole = seconds(sum(far.values()) + weights / device.bandwidth)
    again = batch * weights / device.shared_bandwidth
    idle = ceil(batch / device.workers) * device.workers / batch
    apart = idle * seconds(sum(far.values()) + again)
    inside = idle * seconds(sum(near.values()) + again)
    saved = {v: far[v] - near[v] for v in values}
    whole_saving = sum(saved.values()) or 1.0
    gains = {v: (apart - inside) * part / whole_saving for v, part in saved.items()}
    return _Cost(apart - whole, gains, weights, sum(v.type.bytes for v in values) // batch)


def _is_operand(value: Constant, body: Sequence[Node]) -> bool:
    """Whether a constant is a tensor operand, with one part for each image, not a weight."""
    return any(
        value in node.inputs and (not isinstance(node.op, Contraction) or value is node.inputs[0])
        for node in body
    )


@dataclass(frozen=True)
class _Use:
    """A node's use of a storage: what it saves if that lies in the cache, and from which node to
    which the storage is in use; it has no ``end`` if it is an input or an output."""

    root: Value
    gain: float
    begin: int
    end: int | None


def _uses(
    graph: Graph, annotations: Annotations, costs: Sequence[_Cost | None]
) -> list[list[_Use]]:
    """The uses of storage by each node."""
    roots, lives = storage_roots(graph, annotations), touched(graph, annotations)
    found = []
    for cost in costs:
        gains: dict[Value, float] = {}
        for value, gain in cost.gains.items() if cost is not None else ():
            gains[roots[value]] = gains.get(roots[value], 0.0) + gain
        found.append([_Use(r, gain, *lives.get(r, (0, None))) for r, gain in gains.items()])
    return found


def _best(
    costs: Sequence[_Cost | None], uses: Sequence[Sequence[_Use]], device: Device
) -> list[range]:
    """The disjoint runs of nodes with the largest sum of savings."""
    count = len(costs)
    # Of the nodes before each place: the most that runs save, and which runs.
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
    """What the runs of nodes from ``first`` on save, of one node, two nodes and so on.

    Each use of a storage but the first finds it in the cache; that one too if the storage is used
    by the run alone, and so never lies in memory.
    """
    found: list[float] = []
    saved, weights, image = 0.0, 0, 0
    began: dict[Value, float] = {}
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
            if use.root in began:
                saved += use.gain
            else:
                began[use.root] = use.gain
            if use.begin >= first and use.end == last:
                saved += began[use.root]
        found.append(saved)
    return found


BY_IMAGE = Pass("by_image", by_image, requires=("layout", "place_concat", "schedule"))
