"""Exports a graph as an ONNX model that other engines run.

A graph with named sizes becomes one model with open sizes: it is written for several samples of the
sizes, and the constants that differ are replaced by nodes that compute them from input shapes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.export import structure
from minidnn.frontends.onnx.export.writer import DATA_TYPES, Writer, write_expression, writers
from minidnn.frontends.onnx.library import import_onnx, newest_opset
from minidnn.frontends.onnx.model import SIZES_KEY
from minidnn.graph.checker import check
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Elementwise
from minidnn.sizes.polynomial import SizePolynomial, SizeSamples
from minidnn.sizes.sized_graph import SizedGraph, dims_to_json

#: The default opset, and the oldest one that has all operators that are written.
DEFAULT_OPSET = 20
OLDEST_OPSET = 20
#: The version of the file format (``ir_version``) of that opset.
_IR_VERSION = 9
#: Bytes of constants: protobuf's 2 GiB, less room for the rest of the model.
_MOST_BYTES = (1 << 31) - (1 << 16)

_WRITERS = {**writers.known, **structure.writers.known}


@dataclass(frozen=True)
class WrittenModel:
    """A ``ModelProto``, and for each of its nodes the graph's node that it was written for, as text
    for messages."""

    model: Any
    owners: list[str]


def written_model(graph: Graph, opset: int) -> WrittenModel:
    """Returns a graph as an ``onnx.ModelProto``.

    Regions of an optimized graph are written as the operators in their bodies.

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
    # Drops initializers that no node reads: some were written again, such as a scale reshaped.
    read = {name for node in writer.nodes for name in node.input}
    needed = [tensor for tensor in writer.initializers if tensor.name in read]
    graph_proto = onnx.helper.make_graph(writer.nodes, graph.name or "graph", inputs, infos, needed)
    model = onnx.helper.make_model(
        graph_proto, producer_name="minidnn", opset_imports=[onnx.helper.make_opsetid("", opset)]
    )
    model.ir_version = _IR_VERSION
    return WrittenModel(model, owners)


def _output_names(graph: Graph, writer: Writer) -> list[str]:
    """Reserves the names of the outputs."""
    if graph.output_names is not None:
        names = list(graph.output_names)
    elif len(graph.outputs) == 1:
        names = ["output"]
    else:
        names = [f"output{i}" for i in range(len(graph.outputs))]
    return [writer.fresh(name) for name in names]


def _info(writer: Writer, value: Value, name: str) -> Any:
    """The ``ValueInfoProto`` of an input or output."""
    if value.dtype not in DATA_TYPES:
        raise UnsupportedError(f"{value!r} has a dtype that ONNX lacks")
    make = writer.onnx.helper.make_tensor_value_info
    return make(name, DATA_TYPES[value.dtype], list(value.shape))


def _write(writer: Writer, graph: Graph, owners: list[str]) -> None:
    """Writes the nodes of a graph, with the bodies of regions inlined, and records their owners."""
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
        write = write_expression
    writer.bind(node.output, write(writer, node, [writer.name(v) for v in node.inputs]))


def write_onnx(
    graph: Graph | SizedGraph,
    path: str | os.PathLike[str],
    opset: int = DEFAULT_OPSET,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a graph as an ONNX file, which appears complete or not at all.

    ``metadata`` are properties of the model, in addition to the ranges of named sizes.

    Raises:
        GraphError: the graph is not legal, or larger than such a file may be (2 GiB).
        UnsupportedError: an operator or a dtype has no counterpart in that opset, or something
            cannot be said for all sizes.
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


def to_onnx(graph: Graph | SizedGraph, opset: int = DEFAULT_OPSET) -> Any:
    """Returns the graph as an ``onnx.ModelProto``; raises what :func:`write_onnx` raises."""
    if isinstance(graph, SizedGraph):
        return to_sized_onnx(graph, opset)
    return written_model(graph, opset).model


#: A number of an initializer: a constant, or a polynomial of named sizes.
_Entry = int | SizePolynomial

_MOST_NUMBERS = 64
"""The longest initializer that may depend on sizes: a shape has one number for each axis."""


def to_sized_onnx(graph: SizedGraph, opset: int) -> Any:
    """Returns the graph as an ``onnx.ModelProto`` whose inputs have the named sizes.

    The graph is written for several samples of the sizes.  Where these models differ, in shapes
    that nodes read, nodes that compute the shape from input sizes are inserted; any other
    difference is refused.

    Raises:
        UnsupportedError: something cannot be said for all sizes; names the node.
    """
    samples = SizeSamples(graph.dims)
    base = written_model(graph.at(samples.points[0]), opset)
    comparison = _Comparison(base, samples)
    for point in samples.points[1:]:
        comparison.add(written_model(graph.at(point), opset))
    sizes = _SizeNodes(graph, import_onnx())
    model = base.model
    for name, entries in comparison.initializers().items():
        readers = [node for node in model.graph.node if name in node.input]
        open_indices = [i for i, each in enumerate(entries) if not isinstance(each, int)]
        if len(open_indices) == 1 and all(
            node.op_type == "Reshape" and list(node.input).index(name) == 1 for node in readers
        ):
            fixed = [-1 if i in open_indices else entry for i, entry in enumerate(entries)]
            _replace(model, name, sizes.initializer(name, fixed))
        else:
            _replace(model, name, None)
            computed = sizes.shape(name, entries)
            for node in readers:
                node.input[:] = [computed if each == name else each for each in node.input]
    comparison.name_sizes()
    nodes = [*sizes.nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(sizes.initializers)
    model.metadata_props.add(key=SIZES_KEY, value=json.dumps(dims_to_json(graph.dims)))
    return model


def _replace(model: Any, name: str, new: Any) -> None:
    """Replaces an initializer by another one, or removes it if ``new`` is None."""
    tensors = [new if each.name == name else each for each in model.graph.initializer]
    del model.graph.initializer[:]
    model.graph.initializer.extend(each for each in tensors if each is not None)


class _Comparison:
    """Compares the models of one graph for several samples of its sizes."""

    def __init__(self, base: WrittenModel, samples: SizeSamples) -> None:
        self._base, self._samples = base, samples
        self._initializers = {each.name: each for each in base.model.graph.initializer}
        #: For each other model, the initializers that differ from the base model's, by name.
        self._differing: list[dict[str, Any]] = []
        #: For each other model, its inputs and outputs.
        self._interfaces: list[list[Any]] = []

    def add(self, other: WrittenModel) -> None:
        """Adds the model for another sample of the sizes.

        UnsupportedError if nodes, attributes, or constants that are no shapes differ.
        """
        graph = other.model.graph
        pairs = zip(self._base.model.graph.node, graph.node, strict=False)
        for index, (base, node) in enumerate(pairs):
            if base != node:
                raise self._refusal(self._base.owners[index], f"its {base.op_type}")
        if len(self._base.owners) != len(other.owners):
            longer = max(self._base.owners, other.owners, key=len)
            raise self._refusal(longer[-1], "the number of its nodes")
        differing = {}
        for tensor in graph.initializer:
            base = self._initializers[tensor.name]
            if tensor != base:
                if tensor.dims != base.dims or not _may_follow(base):
                    raise self._refusal(self._owner_of(base.name), f"the constant {base.name!r}")
                differing[tensor.name] = tensor
        self._differing.append(differing)
        self._interfaces.append([*graph.input, *graph.output])

    def initializers(self) -> dict[str, list[_Entry]]:
        """The initializers that depend on sizes, by name: a constant or polynomial for each number.

        UnsupportedError if a number is no polynomial of the sizes.
        """
        entries_by_name: dict[str, list[_Entry]] = {}
        for name in {name: None for differing in self._differing for name in differing}:
            base_tensor = self._initializers[name]
            row = [
                base_tensor,
                *(differing.get(name, base_tensor) for differing in self._differing),
            ]
            arrays = [import_onnx().numpy_helper.to_array(each).tolist() for each in row]
            entries: list[_Entry] = []
            for numbers in zip(*arrays, strict=True):
                entry = self._entry(numbers)
                if entry is None:
                    raise self._refusal(self._owner_of(name), f"a size in it, {list(numbers)},")
                entries.append(entry)
            entries_by_name[name] = entries
        return entries_by_name

    def name_sizes(self) -> None:
        """Sets the open sizes of inputs and outputs to names or polynomials (``dim_param``).

        Sizes that differ in any other way are left undeclared.
        """
        graph = self._base.model.graph
        for index, value in enumerate([*graph.input, *graph.output]):
            others = [interface[index] for interface in self._interfaces]
            for axis, size in enumerate(value.type.tensor_type.shape.dim):
                sizes = [size, *(each.type.tensor_type.shape.dim[axis] for each in others)]
                entry = self._entry([each.dim_value for each in sizes])
                if isinstance(entry, int):
                    continue
                size.Clear()
                if entry is not None:
                    size.dim_param = str(entry)

    def _entry(self, numbers: Sequence[int]) -> _Entry | None:
        """The constant or polynomial with these values at the samples; None if there is none."""
        if all(each == numbers[0] for each in numbers):
            return numbers[0]
        return self._samples.polynomial(numbers)

    def _owner_of(self, initializer: str) -> str:
        for node, owner in zip(self._base.model.graph.node, self._base.owners, strict=True):
            if initializer in node.input:
                return owner
        return "an output"

    def _refusal(self, owner: str, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{owner} cannot be written to ONNX for named sizes: {what} is another for other "
            "sizes; valid is the network for one size, or one where that does not depend on sizes"
        )


def _may_follow(tensor: Any) -> bool:
    """Whether an initializer is a short list of int64, as shapes are."""
    int64 = import_onnx().TensorProto.INT64
    return tensor.data_type == int64 and len(tensor.dims) == 1 and tensor.dims[0] <= _MOST_NUMBERS


class _SizeNodes:
    """Nodes that compute shapes from the sizes of the model's inputs."""

    def __init__(self, graph: SizedGraph, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        #: The names of values that were written, by a key that says what they are.
        self._known: dict[str, str] = {}
        self._count = 0
        #: The input and axis that have each named size.
        self._at = {
            dim.name: (value.name, axis)
            for dim in graph.dims
            for value, template in zip(graph.interface.inputs, graph.templates, strict=True)
            for axis, size in enumerate(template)
            if size == dim
        }

    def initializer(self, name: str, numbers: Sequence[Any]) -> Any:
        """A list of int64 as a ``TensorProto``."""
        return self._onnx.numpy_helper.from_array(np.array(numbers, np.int64), name)

    def shape(self, name: str, entries: Sequence[_Entry]) -> str:
        """Returns the name of a value that is this list of integers.

        Nodes that compute it as ``name`` are added, unless others compute the same list already.
        """
        key = f"shape {[str(each) for each in entries]}"
        if key not in self._known:
            parts = [
                self._number(each) if isinstance(each, int) else self._polynomial(each)
                for each in entries
            ]
            self._known[key] = self._node("Concat", parts, name, axis=0)
        return self._known[key]

    def _polynomial(self, given: SizePolynomial) -> str:
        """The name of a value (1,) that is a polynomial of sizes."""
        text = str(given)
        if text not in self._known:
            terms = []
            for factor, names in given.terms:
                factors = [self._size(name) for name in names]
                if factor != 1 or not factors:
                    factors.append(self._number(factor))
                terms.append(self._folded("Mul", factors))
            total = self._folded("Add", terms)
            if given.divisor != 1:
                total = self._node("Div", [total, self._number(given.divisor)])
            self._known[text] = total
        return self._known[text]

    def _folded(self, kind: str, parts: Sequence[str]) -> str:
        """The name of the reduction of values by a binary operator."""
        total = parts[0]
        for part in parts[1:]:
            total = self._node(kind, [total, part])
        return total

    def _size(self, name: str) -> str:
        """The name of a value (1,) that is a named size, read from an input's shape."""
        key = f"size {name}"
        if key not in self._known:
            value, axis = self._at[name]
            self._known[key] = self._node("Shape", [value], start=axis, end=axis + 1)
        return self._known[key]

    def _number(self, value: int) -> str:
        """The name of an initializer (1,) with this number."""
        key = f"number {value}"
        if key not in self._known:
            self._known[key] = f"minidnn.number.{value}"
            self.initializers.append(self.initializer(self._known[key], [value]))
        return self._known[key]

    def _node(self, kind: str, inputs: Sequence[str], output: str = "", **given: Any) -> str:
        self._count += 1
        name = output or f"minidnn.size.{self._count}"
        node = self._onnx.helper.make_node(kind, list(inputs), [name], name=name, **given)
        self.nodes.append(node)
        return name
