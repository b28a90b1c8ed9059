"""The values that a training step keeps from its forward pass for its backward pass, in bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from minidnn.graph.ir import Graph, Node, Value
from minidnn.passes.recompute import stored_bytes
from minidnn.passes.rederive import forward_nodes
from minidnn.report.explain import inner_nodes, short
from minidnn.runtime.plan import Plan

__all__ = ["Kept", "explain_memory", "kept_values"]


@dataclass(frozen=True)
class Kept:
    """A value that the forward pass computes and the backward pass reads.

    Attributes:
        value: the kept value, of the optimized graph.
        bytes: the size of its storage.
        layers: the layers that compute it.
        readers: the layers whose gradients read it.
    """

    value: Value
    bytes: int
    layers: tuple[str, ...]
    readers: tuple[str, ...]


def kept_values(plan: Plan) -> list[Kept]:
    """The values that are kept, in the order in which they are computed.

    The forward pass is every node that the graph's results depend on: loss and metrics.  Values in
    the storage of inputs and states take no memory of the step's own, and are left out.
    """
    graph, roots = plan.graph, plan.roots
    forward = forward_nodes(graph)
    readers: dict[Value, dict[str, None]] = {}
    for node in graph.nodes:
        if node not in forward and not plan.annotations.is_view(node):
            for value in node.tensors:
                root = roots[value]
                if root.producer in forward and root in plan.arena.offsets:
                    readers.setdefault(root, {}).update(dict.fromkeys(_layers(node)))
    return [
        Kept(value, plan.annotations.storage_bytes(value), _layers(node), tuple(readers[value]))
        for node in graph.nodes
        for value in node.outputs
        if value in readers
    ]


def _layers(node: Node) -> tuple[str, ...]:
    """The layers that a node computes."""
    return tuple(dict.fromkeys(inner.source for inner in inner_nodes(node)))


def explain_memory(plan: Plan) -> str:
    """Describes the kept and the recomputed values, and the bytes of arena and states."""
    kept = kept_values(plan)
    total = sum(each.bytes for each in kept)
    lines = [f"{'kept for the backward pass':<34} {'type':<28} {'MB':>9} {'share':>6}  read by"]
    lines += [
        f"{short(', '.join(each.layers), 34):<34} {_type(each.value):<28} {each.bytes / 1e6:9.3f} "
        f"{100 * each.bytes / total:5.1f}%  {', '.join(each.readers)}"
        for each in kept
    ]
    lines.append(f"{len(kept)} values are kept, {total / 1e6:.3f} MB")
    again = [rewrite for rewrite in plan.rewrites if rewrite.pass_name == "recompute"]
    lines += [rewrite.description for rewrite in again]
    cheap = sum(rewrite.pass_name == "rederive" for rewrite in plan.rewrites)
    if cheap:
        lines.append(f"{cheap} values are computed again where they are read")
    masks = sum(1 for node in _of_backward(plan) if node.op.name == "RandomDrop")
    if masks:
        lines.append(f"drawn again: masks of {masks} dropout layers")
    if not (again or cheap or masks):
        lines.append("nothing is computed again")
    arena = plan.arena
    lines.append(
        f"arena {arena.bytes / 1e6:.3f} MB (at least {arena.lower_bound / 1e6:.3f} MB in use at "
        f"once); states {stored_bytes(plan.graph) / 1e6:.3f} MB: {_states(plan.graph)}"
    )
    return "\n".join(lines)


def _of_backward(plan: Plan) -> Sequence[Node]:
    """The nodes of the backward pass."""
    forward = forward_nodes(plan.graph)
    return [node for node in plan.graph.nodes if node not in forward]


def _type(value: Value) -> str:
    return f"{value.dtype} {'x'.join(map(str, value.shape))}"


def _states(graph: Graph) -> str:
    """Describes the bytes of states by kind: optimizer states are named ``kind@parameter``."""
    sizes: Counter[str] = Counter()
    for state in graph.states:
        kind, mark, parameter = state.name.partition("@")
        is_optimizers = mark and parameter and kind != "loss_scale"
        sizes[kind if is_optimizers else "parameters and statistics"] += state.type.bytes
    return ", ".join(f"{kind} {bytes / 1e6:.3f} MB" for kind, bytes in sizes.items())
