"""Converts a model to a graph.  One error lists all tensors and nodes that are not supported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.build import Builder
from minidnn.frontends.onnx.library import Budget
from minidnn.frontends.onnx.model import Declared, OnnxModel, read_model
from minidnn.frontends.onnx.nodes import Nodes, Scope
from minidnn.frontends.onnx.shapes import bind_shapes, check_output
from minidnn.frontends.onnx.tensors import DTYPES
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import Trace, tracing
from minidnn.graph.types import TensorType, numpy_dtype


class OpenInputsError(UnsupportedError):
    """Inputs determine a shape, an axis or the like, so they must be constants: ``names``."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


def load_onnx(model: Any, shape: Any = None, constants: Mapping[str, Any] | None = None) -> Graph:
    """The graph of an ONNX model.

    Args:
        model: a path, the model's bytes, or a ``ModelProto``.
        shape: for inputs whose sizes the model leaves open: one shape, a sequence of shapes or a
            dict of them by input name; open sizes of one name are equal everywhere.
        constants: values for inputs by name, which are then no inputs of the graph; inputs that
            determine a shape must be given here.

    Returns:
        A graph with the outputs in the model's order; several outputs keep the model's names.

    Raises:
        GraphError: the model is malformed, hostile, or the shapes do not fit it.
        UnsupportedError: nodes, dtypes or the opset are not supported; lists all such inputs,
            initializers and nodes.
        DeviceError: the package ``onnx`` is not installed.
        OSError: the file cannot be read.

    >>> graph = md.load_onnx("model.onnx")
    >>> exe = md.compile(graph)
    """
    graph, _ = load_model(read_model(model), shape, constants)
    return graph


def load_model(
    model: OnnxModel, shape: Any = None, constants: Mapping[str, Any] | None = None
) -> tuple[Graph, dict[str, Value | None]]:
    """Returns the graph of a model that was read, and the value of each of the model's names.

    A name that could not be converted has None.
    """
    if constants is not None and not isinstance(constants, Mapping):
        raise GraphError(
            f"{model.title}: constants is a {type(constants).__name__}; valid is a dict of values "
            "by the input's name"
        )
    with tracing(str(model.proto.graph.name) or "onnx") as trace:
        conversion = _Conversion(model, trace, shape, constants or {})
        return conversion.graph(), conversion.values


class _Conversion:
    """The conversion of one model: binds initializers and inputs, then converts the nodes."""

    def __init__(
        self, model: OnnxModel, trace: Trace, shape: Any, constants: Mapping[str, Any]
    ) -> None:
        self.model = model
        self.trace = trace
        self.build = Builder(trace, Budget(model.bytes))
        #: The value of each of the model's names; None for what could not be converted.
        self.values: dict[str, Value | None] = dict.fromkeys(model.refused)
        self.nodes = Nodes(model, trace, self.build)
        for name, array in model.initializers.items():
            self.values[name] = self.build.constant(array, name)
        known = self._known(constants)
        inputs = [declared for declared in model.inputs if declared.name not in constants]
        for name, sizes in bind_shapes(model.title, inputs, shape, known).items():
            dtype = next(
                declared.dtype for declared in inputs if declared.name == name and declared.dtype
            )
            value = self.build.input(trace.input(TensorType(sizes, dtype), name))
            self.values[name] = value

    def _known(self, constants: Mapping[str, Any]) -> list[tuple[Declared, tuple[int, ...]]]:
        """Binds the inputs that are given as constants, and returns them with their shapes."""
        known = []
        declared = {value.name: value for value in self.model.inputs}
        for name, given in constants.items():
            if name not in declared:
                raise GraphError(
                    f"{self.model.title}: constants names {name!r:.100}; valid are {list(declared)}"
                )
            dtype = declared[name].dtype
            if dtype is None:
                continue
            try:
                array = np.asarray(given)
            except ValueError as error:  # rows of different lengths
                raise GraphError(
                    f"{self.model.title}: the constant {name!r} is no array: {error}"
                ) from error
            if array.dtype != numpy_dtype(dtype):
                raise GraphError(
                    f"{self.model.title}: the constant {name!r} is {array.dtype}; valid is {dtype}"
                )
            self.values[name] = self.build.constant(array, name)
            known.append((declared[name], tuple(array.shape)))
        return known

    def graph(self) -> Graph:
        """Converts the nodes and returns the graph; raises all reasons together."""
        self.nodes.convert(self.model.proto.graph.node, Scope(self.values, self.model.opset))
        if self.nodes.refused or self.model.refused:
            raise self._refusal()
        outputs = []
        for name in self.model.outputs:
            value = self.values.get(name)
            if value is None:
                raise GraphError(f"{self.model.title}: nothing computes its output {name!r:.100}")
            if self.build.dtype(value) != value.dtype:
                raise UnsupportedError(
                    f"{self.model.title}: output {name!r:.100} is {self.build.dtype(value)}; valid "
                    f"are {', '.join(DTYPES.values())}"
                )
            outputs.append(value)
        for declared, value in zip(self.model.proto.graph.output, outputs, strict=True):
            check_output(self.model.title, declared, value.type)
        names = self.model.outputs if len(outputs) > 1 else None
        if names is not None and len(set(names)) < len(names):
            raise GraphError(f"{self.model.title} has two outputs of one name: {names}")
        return self.trace.graph(outputs, names)

    def _refusal(self) -> UnsupportedError:
        """The error that lists all inputs, initializers and nodes that are not supported."""
        tensors = list(self.model.refused.values())
        counts = [f"{len(tensors)} tensors"] * bool(tensors)
        counts += [f"{len(self.nodes.refused)} nodes"] * bool(self.nodes.refused)
        message = (
            f"{self.model.title} (opset {self.model.opset}) has {' and '.join(counts)} that cannot "
            "be converted:\n  " + "\n  ".join(tensors + self.nodes.refused)
        )
        if self.nodes.open_inputs:
            return OpenInputsError(message, tuple(sorted(self.nodes.open_inputs)))
        return UnsupportedError(message)
