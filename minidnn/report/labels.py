"""Labels of regions: the names of a user's own layers, for people to find them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from minidnn.graph.ir import Node
from minidnn.graph.operators.movement import Reorder
from minidnn.report.explain import inner_nodes

_SHOWN = 4
"""Parts of a label; how many more there are is counted."""


def labels(nodes: Iterable[Node]) -> list[str]:
    """A label for each node of an optimized graph, all different.

    A label is the path of the first layer, then what is fused to it: ``layer1.0.conv1 + relu``.  A
    layer whose own name is a number, or that has none, is called by its operator as well:
    ``features.0 (Conv2d) + ReLU``.  A layer that computes twice has ``#2`` behind the second label.
    What only moves a value to another layout is called after the value.
    """
    seen: Counter[str] = Counter()
    found: dict[Node, str] = {}
    for node in nodes:
        if isinstance(node.op, Reorder):  # no layer of the user's: what it moves is
            value = node.inputs[0]
            moved = value.name if value.producer is None else found[value.producer]
            label = f"{moved}, moved to {node.op.layout}"
        else:
            label = _label([(inner.source, inner.op.name) for inner in inner_nodes(node)])
        seen[label] += 1
        found[node] = label if seen[label] == 1 else f"{label} #{seen[label]}"
    return list(found.values())


def _label(parts: Sequence[tuple[str, str]]) -> str:
    (first, operator), *rest = dict.fromkeys(parts)
    own = first.rpartition(".")[2]
    head = f"{first} ({operator})".lstrip() if not own or own.isdigit() else first
    told = [head, *(_fused(path, operator, first) for path, operator in rest)]
    more = len(told) - _SHOWN
    return " + ".join(told[:_SHOWN]) + (f" + {more} more" if more > 0 else "")


def _fused(path: str, operator: str, first: str) -> str:
    """What a layer is called behind the first: by its own name if both are of one block."""
    block, _, own = path.rpartition(".")
    if not path or f"{first}.".startswith(f"{path}."):
        return operator  # of the block itself, such as the addition of a residual block
    if block != first.rpartition(".")[0]:
        return path
    return operator if own.isdigit() else own
