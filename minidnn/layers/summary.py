"""Formats the table of :meth:`Layer.summary`: layers, output shapes, parameters and operations."""

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
#: Widths in characters: of the table, of a type or an output, and at least of a path.
_WIDEST = 99
_WIDEST_TEXT = 20
_SHORTEST_PATH = 20
#: What PyTorch calls buffers: stored with the weights, but not learned.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, slots=True)
class Described:
    """A layer as the table shows it.

    Attributes:
        type: the name of its class.
        leaf: whether it has no layers below it.
        parameters: its own parameters, by name.
    """

    type: str
    leaf: bool
    parameters: Mapping[str, Parameter]


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the table; ``operations`` is None for a layer that is not called."""

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
    """The table of a network, from the name of its class, its graph, and its layers by path."""
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
    """Whether a node belongs to a layer below ``path``."""
    return not path or source.startswith(f"{path}.")


def _own_parameters(layers: Mapping[str, Described]) -> dict[str, dict[str, Parameter]]:
    """The own parameters of each layer, by path; shared ones appear at the first layer only."""
    seen: set[int] = set()
    parameters: dict[str, dict[str, Parameter]] = {}
    for path, layer in layers.items():
        parameters[path] = {}
        for name, value in layer.parameters.items():
            if id(value) not in seen:
                seen.add(id(value))
                parameters[path][name] = value
    return parameters


def _groups(nodes: tuple[Node, ...], layers: Mapping[str, Described]) -> dict[str, list[Node]]:
    """Nodes by the path of the leaf layer that recorded them; other nodes by their own names."""
    if len(layers) == 1:
        return {"": list(nodes)}
    leaves = {path for path, layer in layers.items() if path and layer.leaf}
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        path = node.source if node.source in leaves else node.name
        groups.setdefault(path, []).append(node)
    return groups


def _row(path: str, layer: Described | None, nodes: list[Node], own: dict[str, Parameter]) -> _Row:
    # A layer may record several operators in one call: the most frequent one counts its calls.
    """The row of a layer, or of a node between layers."""
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
    """The number of elements of parameters that are no statistics."""
    return sum(p.type.size for name, p in own.items() if name not in _STATISTICS)


def _shapes(types: Any) -> str:
    return ", ".join("x".join(map(str, type.shape)) for type in types)


def _table(rows: list[_Row]) -> list[str]:
    """The lines of the table, with aligned columns."""
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
    """The lines below the table."""
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
    """A text cut in its middle to a width."""
    if len(text) <= width:
        return text
    head = (width - 3) // 3
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"
