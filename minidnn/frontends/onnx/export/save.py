"""A graph as a file that other engines run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
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


def write_onnx(
    graph: Graph,
    path: str | os.PathLike[str],
    opset: int = DEFAULT_OPSET,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a graph as an ONNX file, which appears complete or not at all.

    ``metadata`` are the model's properties.

    Raises:
        GraphError: the graph is not legal, or larger than such a file may be (2 GiB).
        UnsupportedError: an operator or a dtype has no counterpart in that opset.
        DeviceError: the package ``onnx`` is not installed.
        OSError: the file cannot be written.
    """
    model = to_onnx(graph, opset)
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    data = model.SerializeToString()
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error  # not the temporary one


def to_onnx(graph: Graph, opset: int = DEFAULT_OPSET) -> Any:
    """The graph as an ``onnx.ModelProto``; raises what :func:`write_onnx` raises.

    Regions of an optimized graph are written as the operators that they compute.
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
    _write(writer, graph)
    for value, name in zip(graph.outputs, outputs, strict=True):
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
    return model


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


def _write(writer: Writer, graph: Graph) -> None:
    for node in graph.nodes:
        body = getattr(node.op, "body", None)
        if isinstance(body, Graph):
            for inner, outer in zip(body.inputs, node.inputs, strict=True):
                writer.bind(inner, writer.name(outer))
            _write(writer, body)
            for inner, outer in zip(body.outputs, node.outputs, strict=True):
                writer.bind(outer, writer.name(inner))
        else:
            _write_node(writer, node)


def _write_node(writer: Writer, node: Node) -> None:
    write = _WRITERS.get(type(node.op))
    if write is None:
        if not isinstance(node.op, Elementwise):
            raise writer.refuse(node, "nothing is known that does the same")
        write = elementwise.write_expression
    writer.bind(node.output, write(writer, node, [writer.name(v) for v in node.inputs]))
