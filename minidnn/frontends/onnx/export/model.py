"""A graph as an ONNX model that other engines run: of its sizes, or of all in ranges, with open
sizes and nodes that hold for all."""

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

#: The opset that is written, and the oldest that has all of its operators.
DEFAULT_OPSET = 20
OLDEST_OPSET = 20
#: That opset's version of the format.
_IR_VERSION = 9
_MOST_BYTES = (1 << 31) - (1 << 16)

_WRITERS = {**writers.known, **structure.writers.known}


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
        write = write_expression
    writer.bind(node.output, write(writer, node, [writer.name(v) for v in node.inputs]))


def write_onnx(
    graph: Graph | SizedGraph,
    path: str | os.PathLike[str],
    opset: int = DEFAULT_OPSET,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a graph as an ONNX file, which appears complete or not at all.

    ``metadata`` are the model's properties, beside the ranges of named sizes.

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
    """The graph as an ``onnx.ModelProto``; raises what :func:`write_onnx` raises."""
    if isinstance(graph, SizedGraph):
        return to_sized_onnx(graph, opset)
    return written_model(graph, opset).model


#: A number of an initializer, or what it follows from.
_Entry = int | SizePolynomial

_MOST_NUMBERS = 64
"""Of an initializer that may follow from sizes: one for each axis."""


def to_sized_onnx(graph: SizedGraph, opset: int) -> Any:
    """The graph as an ``onnx.ModelProto`` whose inputs have the named sizes.

    It is written for some sizes, and what differs between these models follows from sizes: shapes
    that nodes read become what other nodes compute, and all else is refused.

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
        open_places = [i for i, each in enumerate(entries) if not isinstance(each, int)]
        if len(open_places) == 1 and all(
            node.op_type == "Reshape" and list(node.input).index(name) == 1 for node in readers
        ):
            fixed = [-1 if i in open_places else entry for i, entry in enumerate(entries)]
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
    """Puts an initializer in another's place, or nothing."""
    kept = [new if each.name == name else each for each in model.graph.initializer]
    del model.graph.initializer[:]
    model.graph.initializer.extend(each for each in kept if each is not None)


class _Comparison:
    """Models of one graph for several sizes, side by side."""

    def __init__(self, base: WrittenModel, samples: SizeSamples) -> None:
        self._base, self._samples = base, samples
        self._initializers = {each.name: each for each in base.model.graph.initializer}
        #: For each other model the initializers that differ from those of the first, by name, and
        #: its inputs and outputs.
        self._differing: list[dict[str, Any]] = []
        self._interfaces: list[list[Any]] = []

    def add(self, other: WrittenModel) -> None:
        """Takes a model for another size.

        UnsupportedError if nodes, their attributes or constants that are no shapes are others.
        """
        graph = other.model.graph
        pairs = zip(self._base.model.graph.node, graph.node, strict=False)
        for place, (one, two) in enumerate(pairs):
            if one != two:
                raise self._refusal(self._base.owners[place], f"its {one.op_type}")
        if len(self._base.owners) != len(other.owners):
            longer = max(self._base.owners, other.owners, key=len)
            raise self._refusal(longer[-1], "the number of its nodes")
        found = {}
        for tensor in graph.initializer:
            one = self._initializers[tensor.name]
            if tensor != one:
                if tensor.dims != one.dims or not _may_follow(one):
                    raise self._refusal(self._owner_of(one.name), f"the constant {one.name!r}")
                found[tensor.name] = tensor
        self._differing.append(found)
        self._interfaces.append([*graph.input, *graph.output])

    def initializers(self) -> dict[str, list[_Entry]]:
        """Those that follow from sizes, by name."""
        found: dict[str, list[_Entry]] = {}
        for name in {name: None for differing in self._differing for name in differing}:
            one = self._initializers[name]
            row = [one, *(differing.get(name, one) for differing in self._differing)]
            arrays = [import_onnx().numpy_helper.to_array(each).tolist() for each in row]
            entries: list[_Entry] = []
            for numbers in zip(*arrays, strict=True):
                entry = self._entry(numbers)
                if entry is None:
                    raise self._refusal(self._owner_of(name), f"a size in it, {list(numbers)},")
                entries.append(entry)
            found[name] = entries
        return found

    def name_sizes(self) -> None:
        """Names the open sizes of inputs and outputs; of those that follow from sizes in another
        way nothing is said."""
        graph = self._base.model.graph
        for place, value in enumerate([*graph.input, *graph.output]):
            others = [interface[place] for interface in self._interfaces]
            for axis, size in enumerate(value.type.tensor_type.shape.dim):
                sizes = [size, *(each.type.tensor_type.shape.dim[axis] for each in others)]
                entry = self._entry([each.dim_value for each in sizes])
                if isinstance(entry, int):
                    continue
                size.Clear()
                if entry is not None:
                    size.dim_param = str(entry)

    def _entry(self, numbers: Sequence[int]) -> _Entry | None:
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
    """Whether an initializer is a list of few integers, as shapes are."""
    int64 = import_onnx().TensorProto.INT64
    return tensor.data_type == int64 and len(tensor.dims) == 1 and tensor.dims[0] <= _MOST_NUMBERS


class _SizeNodes:
    """Nodes that compute shapes from the sizes of the model's inputs."""

    def __init__(self, graph: SizedGraph, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._known: dict[str, str] = {}
        self._count = 0
        self._at = {
            dim.name: (value.name, axis)
            for dim in graph.dims
            for value, template in zip(graph.interface.inputs, graph.templates, strict=True)
            for axis, size in enumerate(template)
            if size == dim
        }

    def initializer(self, name: str, numbers: Sequence[Any]) -> Any:
        return self._onnx.numpy_helper.from_array(np.array(numbers, np.int64), name)

    def shape(self, name: str, entries: Sequence[_Entry]) -> str:
        """The name of what computes a list of integers: ``name``, if nothing did before."""
        key = f"shape {[str(each) for each in entries]}"
        if key not in self._known:
            parts = [
                self._number(each) if isinstance(each, int) else self._polynomial(each)
                for each in entries
            ]
            self._known[key] = self._node("Concat", parts, name, axis=0)
        return self._known[key]

    def _polynomial(self, given: SizePolynomial) -> str:
        text = str(given)
        if text not in self._known:
            terms = []
            for factor, names in given.terms:
                parts = [self._size(name) for name in names]
                if factor != 1 or not parts:
                    parts.append(self._number(factor))
                terms.append(self._folded("Mul", parts))
            total = self._folded("Add", terms)
            if given.divisor != 1:
                total = self._node("Div", [total, self._number(given.divisor)])
            self._known[text] = total
        return self._known[text]

    def _folded(self, kind: str, parts: Sequence[str]) -> str:
        found = parts[0]
        for part in parts[1:]:
            found = self._node(kind, [found, part])
        return found

    def _size(self, name: str) -> str:
        key = f"size {name}"
        if key not in self._known:
            value, axis = self._at[name]
            self._known[key] = self._node("Shape", [value], start=axis, end=axis + 1)
        return self._known[key]

    def _number(self, value: int) -> str:
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
