"""A graph, for its sizes, as an ONNX model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.export import elementwise, structure
from minidnn.frontends.onnx.export.writer import DATA_TYPES, Writer
from minidnn.frontends.onnx.library import import_onnx, newest_opset
from minidnn.graph.checker import check
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Elementwise

#: The opset that is written, and the oldest that has all of its operators.
DEFAULT_OPSET = 20
OLDEST_OPSET = 20
#: That opset's version of the format.
_IR_VERSION = 9
_MOST_BYTES = (1 << 31) - (1 << 16)

_WRITERS = {**elementwise.writers.known, **structure.writers.known}


@dataclass(frozen=True)
class WrittenModel:
    """A model, and which node of the graph each of its nodes is of, in words."""

    model: Any
    owners: list[str]


def written_model(graph: Graph, opset: int) -> WrittenModel:
    """The graph as an ``onnx.ModelProto``.

    Regions of an optimized graph are written as the operators that they compute.

    Raises:
        GraphError: the graph is not legal, or larger than such a file may be (2 GiB).
        UnsupportedError: an operator or a dtype has no counterpart in that opset.
        DeviceError: the package ``onnx`` is not installed.
    """
    onnx = import_onnx()
    newest = newest_opset()
    if type(opset) is not int or not OLDEST_OPSET <= opset <= newest:
        raise UnsupportedError(f"opset={opset!r}; valid is one from {OLDEST_OPSET} to {newest}")
    check(graph)
    size = sum(constant.type.bytes for constant in graph.constants)
    if size > _MOST_BYTES:
        raise GraphError(
            f"graph {graph.name!r} has {size} bytes of constants; valid are {_MOST_BYTES}"
        )
    writer = Writer(onnx, opset)
    outputs = _output_names(graph, writer)
    inputs = []
    for value in graph.inputs:
        writer.bind(value, writer.fresh(value.name))
        inputs.append(_info(writer, value, writer.name(value)))
    owners: list[str] = []
    _write(writer, graph, owners)
    for value, name in zip(graph.outputs, outputs, strict=True):
        owners.append(f"output {name!r}")
        writer.nodes.append(onnx.helper.make_node("Identity", [writer.name(value)], [name]))
    infos = [_info(writer, v, n) for v, n in zip(graph.outputs, outputs, strict=True)]
    # Of some constants a node needs others in their place, such as a scale in another shape.
    read = {name for node in writer.nodes for name in node.input}
    needed = [each for each in writer.initializers if each.name in read]
    made = onnx.helper.make_graph(writer.nodes, graph.name or "graph", inputs, infos, needed)
    model = onnx.helper.make_model(
        made, producer_name="minidnn", opset_imports=[onnx.helper.make_opsetid("", opset)]
    )
    model.ir_version = _IR_VERSION
    return WrittenModel(model, owners)


def _output_names(graph: Graph, writer: Writer) -> list[str]:
    if graph.output_names is not None:
        names = list(graph.output_names)
    elif len(graph.outputs) == 1:
        names = ["output"]
    else:
        names = [f"output{i}" for i in range(len(graph.outputs))]
    return [writer.fresh(name) for name in names]


def _info(writer: Writer, value: Value, name: str) -> Any:
    if value.dtype not in DATA_TYPES:
        raise UnsupportedError(f"{value!r} has a dtype that ONNX lacks")
    make = writer.onnx.helper.make_tensor_value_info
    return make(name, DATA_TYPES[value.dtype], list(value.shape))


def _write(writer: Writer, graph: Graph, owners: list[str]) -> None:
    for node in graph.nodes:
        body = getattr(node.op, "body", None)
        if isinstance(body, Graph):
            for inner, outer in zip(body.inputs, node.inputs, strict=True):
                writer.bind(inner, writer.name(outer))
            _write(writer, body, owners)
            for inner, outer in zip(body.outputs, node.outputs, strict=True):
                writer.bind(outer, writer.name(inner))
        else:
            _write_node(writer, node)
            added = len(writer.nodes) - len(owners)
            owners += [f"node {node.name!r} ({node.op.name})"] * added


def _write_node(writer: Writer, node: Node) -> None:
    write = _WRITERS.get(type(node.op))
    if write is None:
        if not isinstance(node.op, Elementwise):
            raise writer.refuse(node, "nothing is known that does the same")
        write = elementwise.write_expression
    writer.bind(node.output, write(writer, node, [writer.name(v) for v in node.inputs]))
