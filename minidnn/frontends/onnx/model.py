"""Reads a model: from a path, bytes or a ``ModelProto`` to an :class:`OnnxModel`.

Its structure is checked here, and its initializers become arrays; nodes are converted elsewhere
(:mod:`minidnn.frontends.onnx.convert`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.library import MOST_NODES, OLDEST_OPSET, import_onnx, newest_opset
from minidnn.frontends.onnx.tensors import dtype_of, read_tensor
from minidnn.weights.load import other_format

#: The identity of a function: domain, name and overload.
Key = tuple[str, str, str]
#: The names of ONNX's own operator domain.
OWN_DOMAIN = ("", "ai.onnx")

SIZES_KEY = "minidnn.sizes"
"""The key of a model's metadata property with the ranges of its named sizes, as JSON."""


@dataclass(frozen=True)
class Declared:
    """A graph input as the model declares it.

    Attributes:
        dtype: minidnn's dtype; None if it has none for the element type.
        sizes: for each axis a size, the name of an open one (``dim_param``), or None; None instead
            of a tuple if no shape is declared.
    """

    name: str
    dtype: str | None
    sizes: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class OnnxModel:
    """A parsed model, whose nodes are not checked yet."""

    #: The model's name in error messages.
    title: str
    #: The ``ModelProto``.
    proto: Any
    #: The version of ONNX's own operator domain.
    opset: int
    #: The size of the serialized model in bytes.
    bytes: int
    #: The file that the model was read from; external data are looked for in its folder.
    path: Path | None
    #: Graph inputs that are no initializers.
    inputs: tuple[Declared, ...]
    initializers: Mapping[str, np.ndarray]
    #: Why inputs and initializers are not supported, by name; converting raises it with all other
    #: reasons.
    refused: Mapping[str, str]
    #: The functions that the model defines (``FunctionProto``).
    functions: Mapping[Key, Any]

    @property
    def nodes(self) -> list[Any]:
        return list(self.proto.graph.node)

    @property
    def outputs(self) -> list[str]:
        return [output.name for output in self.proto.graph.output]


def is_model(network: object) -> bool:
    """Whether ``network`` is what :func:`read_model` takes, by its type alone."""
    if isinstance(network, (str, os.PathLike)):
        return os.fsdecode(network).lower().endswith(".onnx")
    kind = type(network)
    proto = kind.__name__ == "ModelProto" and kind.__module__.partition(".")[0] == "onnx"
    return proto or isinstance(network, (bytes, bytearray, memoryview))


def read_model(network: Any) -> OnnxModel:
    """Reads a model from a path, bytes or a ``ModelProto``.

    GraphError if it is malformed, UnsupportedError if its opset is not known, OSError if the file
    cannot be read, DeviceError if ``onnx`` is not installed.
    """
    onnx = import_onnx()
    path = None
    title = "the ONNX model"
    if isinstance(network, (str, os.PathLike)):
        path = Path(os.fsdecode(network))
        title = f"ONNX file {str(path)!r}"
        if path.is_fifo() or path.is_socket() or path.is_char_device():
            raise GraphError(f"{title} is not a regular file")  # reading one may wait for ever
        network = path.read_bytes()
    if isinstance(network, (bytes, bytearray, memoryview)):
        size = len(network)
        proto = _parsed(onnx, bytes(network), title)
    elif isinstance(network, onnx.ModelProto):
        proto, size = network, int(network.ByteSize())
    else:
        raise GraphError(
            f"model={network!r:.80} is a {type(network).__name__}; valid are a path, the bytes of "
            "a model and an onnx.ModelProto"
        )
    return _checked(proto, size, path, title)


def with_data_inside(model: OnnxModel) -> Any:
    """Returns a copy of the ``ModelProto`` with external data embedded in the model."""
    onnx = import_onnx()
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    attributes = [attribute.t for node in proto.graph.node for attribute in node.attribute]
    for tensor in (*proto.graph.initializer, *attributes):
        if tensor.data_location:
            array = np.ascontiguousarray(read_tensor(tensor, model.path, tensor.name))
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return proto


def _parsed(onnx: Any, data: bytes, title: str) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return onnx.ModelProto.FromString(data)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = other_format(data[:512])
        reason = str(error) if what is None else f"it {what}"
        raise GraphError(f"{title} is no ONNX model: {reason}") from error


def _checked(proto: Any, size: int, path: Path | None, title: str) -> OnnxModel:
    """Checks a model's structure and reads its initializers, inputs and functions."""
    if not proto.HasField("graph") or not len(proto.graph.output):
        raise GraphError(f"{title} is no ONNX model: it has no graph with outputs")
    opset = _opset(proto, title)
    if len(proto.graph.node) > MOST_NODES:
        raise GraphError(f"{title} has {len(proto.graph.node)} nodes; valid are {MOST_NODES}")
    sparse = [entry.values.name for entry in proto.graph.sparse_initializer]
    refused = {
        name: f"initializer {name!r:.100} is sparse; valid is a dense one" for name in sparse
    }
    initializers: dict[str, np.ndarray] = {}
    for tensor in proto.graph.initializer:
        what = f"initializer {tensor.name!r:.100}"
        if tensor.name in initializers or tensor.name in refused or not tensor.name:
            raise GraphError(f"{title}: {what} has no name of its own")
        try:
            initializers[tensor.name] = read_tensor(tensor, path, what)
        except UnsupportedError as error:
            refused[tensor.name] = str(error)
        except GraphError as error:
            raise GraphError(f"{title}: {error}") from error
    inputs = tuple(
        _declared(value, title, refused)
        for value in proto.graph.input
        if value.name not in initializers and value.name not in refused
    )
    names = [declared.name for declared in inputs]
    if len(set(names)) < len(names):
        raise GraphError(f"{title} has two inputs of one name: {', '.join(names):.200}")
    return OnnxModel(
        title, proto, opset, size, path, inputs, initializers, refused, _functions(proto, title)
    )


def _functions(proto: Any, title: str) -> dict[Key, Any]:
    functions = {key_of(function): function for function in proto.functions}
    if len(functions) < len(proto.functions):
        raise GraphError(f"{title} has two functions of one name and domain")
    return functions


def _opset(proto: Any, title: str) -> int:
    """The version of ONNX's own domain; UnsupportedError if it is not one that is imported."""
    versions = [entry.version for entry in proto.opset_import if entry.domain in OWN_DOMAIN]
    newest = newest_opset()
    if len(versions) != 1 or not OLDEST_OPSET <= versions[0] <= newest:
        listed = ", ".join(map(str, versions)) or "no"
        raise UnsupportedError(
            f"{title} has opset {listed}; valid is one from {OLDEST_OPSET} to {newest}"
        )
    return int(versions[0])


def _declared(value: Any, title: str, refused: dict[str, str]) -> Declared:
    """Reads a graph input; if minidnn does not support it, ``refused`` gets the reason."""
    what = f"input {value.name!r:.100}"
    if not value.name:
        raise GraphError(f"{title} has an input without a name")
    if value.type.WhichOneof("value") != "tensor_type":
        kind = value.type.WhichOneof("value") or "no type"
        refused[value.name] = f"{what} is a {kind.removesuffix('_type')}; valid is a tensor"
        return Declared(value.name, None, None)
    tensor = value.type.tensor_type
    dtype = None
    try:
        dtype = dtype_of(tensor.elem_type, what)
    except UnsupportedError as error:
        refused[value.name] = str(error)
    if not tensor.HasField("shape"):
        return Declared(value.name, dtype, None)
    sizes: list[int | str | None] = []
    for dim in tensor.shape.dim:
        known = dim.WhichOneof("value")
        sizes.append(None if known is None else getattr(dim, known) or None)
        if known == "dim_value":
            if dim.dim_value < 0:
                raise GraphError(
                    f"{title}: {what} has an axis of size {dim.dim_value}; valid are >= 0"
                )
            sizes[-1] = int(dim.dim_value)
    return Declared(value.name, dtype, tuple(sizes))


def key_of(proto: Any) -> Key:
    """Returns the key of a ``FunctionProto``, or of the function that a ``NodeProto`` calls."""
    name = proto.name if hasattr(proto, "attribute_proto") else proto.op_type
    domain = "" if proto.domain == "ai.onnx" else str(proto.domain)
    return (domain, str(name), str(getattr(proto, "overload", "")))
