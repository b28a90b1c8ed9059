"""The table behind :meth:`Layer.summary`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minidnn.graph.ir import Graph, Node
from minidnn.graph.operator import Operator
from minidnn.graph.totals import operations
from minidnn.graph.types import TensorType
from minidnn.layers.parameter import Parameter

_HEADER = ("Layer", "Type", "Output", "Parameters", "Operations")
_WIDEST = 99
_WIDEST_TEXT = 20
_SHORTEST_PATH = 20
#: What PyTorch calls buffers: stored with the weights, but not learned.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, slots=True)
class Described:
    """What the table needs to know of a layer: its class, its own parameters, and whether it
    has no layers below it."""

    type: str
    leaf: bool
    parameters: Mapping[str, Parameter]


@dataclass(frozen=True, slots=True)
class _Row:
    path: str
    type: str
    output: str
    parameters: int
    operations: int | None

    def cells(self) -> tuple[str, ...]:
        numbers = (f"{n:,}" if n else "-" for n in (self.parameters, self.operations))
        texts = (_shortened(text, _WIDEST_TEXT) for text in (self.type, self.output))
        return (self.path or "(network)", *texts, *numbers)


def summary(network: str, graph: Graph, layers: Mapping[str, Described]) -> str:
    """The table for a network of that class, its graph, and its layers by their paths."""
    own = _own_parameters(layers)
    groups = _groups(graph.nodes, layers)
    rows = [
        _row(path, layers.get(path), nodes, own.get(path, {})) for path, nodes in groups.items()
    ]
    for path, layer in layers.items():
        if path not in groups and (layer.leaf or _learned(own[path])):
            called = any(node.source == path or _below(node.source, path) for node in graph.nodes)
            output = "" if called else "not called"
            rows.append(_Row(path, layer.type, output, _learned(own[path]), None))
    shown = f"{network}: {_shapes(value.type for value in graph.inputs)}"
    return "\n".join([shown, *_table(rows), *_totals(rows, own)])


def _below(source: str, path: str) -> bool:
    return not path or source.startswith(f"{path}.")


def _own_parameters(layers: Mapping[str, Described]) -> dict[str, dict[str, Parameter]]:
    """The parameters of each layer itself; those met before at another one are left out."""
    seen: set[int] = set()
    found: dict[str, dict[str, Parameter]] = {}
    for path, layer in layers.items():
        found[path] = {}
        for name, value in layer.parameters.items():
            if id(value) not in seen:
                seen.add(id(value))
                found[path][name] = value
    return found


def _groups(nodes: tuple[Node, ...], layers: Mapping[str, Described]) -> dict[str, list[Node]]:
    """Nodes by the layer without layers below it that they come from, or each by itself."""
    if len(layers) == 1:
        return {"": list(nodes)}
    leaves = {path for path, layer in layers.items() if path and layer.leaf}
    found: dict[str, list[Node]] = {}
    for node in nodes:
        path = node.source if node.source in leaves else node.name
        found.setdefault(path, []).append(node)
    return found


def _row(path: str, layer: Described | None, nodes: list[Node], own: dict[str, Parameter]) -> _Row:
    # A layer that records several different operators was called once for each kind of them.
    kinds: Counter[Operator] = Counter(node.op for node in nodes)
    calls = max(kinds.values())
    kind = nodes[-1].op.name if layer is None else layer.type
    return _Row(
        path,
        f"{kind} x{calls}" if calls > 1 else kind,
        _shapes(value.type for value in nodes[-1].outputs),
        _learned(own),
        sum(map(operations, nodes)),
    )


def _learned(own: dict[str, Parameter]) -> int:
    return sum(p.type.size for name, p in own.items() if name not in _STATISTICS)


def _shapes(types: Any) -> str:
    return ", ".join("x".join(map(str, type.shape)) for type in types)


def _table(rows: list[_Row]) -> list[str]:
    table = [_HEADER, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rest = sum(widths[1:]) + 2 * len(widths[1:])
    widths[0] = min(widths[0], max(_WIDEST - rest, _SHORTEST_PATH))
    table = [(_shortened(path, widths[0]), *cells) for path, *cells in table]
    lines = []
    for cells in table:
        aligned = [
            cell.ljust(width) if i < 3 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("  ".join(aligned).rstrip())
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return [lines[0], rule, *lines[1:], rule]


def _totals(rows: list[_Row], own: dict[str, dict[str, Parameter]]) -> list[str]:
    parameters: list[tuple[str, TensorType]] = [
        (name, parameter.type) for of_layer in own.values() for name, parameter in of_layer.items()
    ]
    learned = sum(type.size for name, type in parameters if name not in _STATISTICS)
    stored = sum(type.size for name, type in parameters if name in _STATISTICS)
    size = sum(type.bytes for _, type in parameters)
    done = sum(row.operations or 0 for row in rows)
    return [
        f"Parameters: {learned:,}" + (f", and {stored:,} stored statistics" if stored else ""),
        f"Weights:    {size:,} bytes ({size / 2**20:,.2f} MiB)",
        f"Operations: {done:,} (a multiply-add counts as 2)",
    ]


def _shortened(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    head = (width - 3) // 3
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"
