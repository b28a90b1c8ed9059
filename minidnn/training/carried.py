"""Makes networks that are no layers trainable: ONNX files, graphs, PyTorch's modules.

:func:`as_layer` wraps what :func:`minidnn.compile` takes in a layer whose parameters are the
constants of the captured graph, so that the rest of training knows layers alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import numpy as np

from minidnn.errors import GraphError, MiniDNNWarning
from minidnn.frontends.torch.frontend import in_evaluation
from minidnn.graph import operators as ops
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.trace import current_trace
from minidnn.graph.types import FLOATS
from minidnn.layers import BatchNorm2d, Layer
from minidnn.layers.arguments import Declared, Shapes
from minidnn.layers.parameter import Parameter
from minidnn.networks import graph_of
from minidnn.training.objective import packed

__all__ = ["CarriedNetwork", "as_layer"]

Inputs = tuple[tuple[int, ...], ...]


def as_layer(network: Any, shape: Shapes | None) -> tuple[Layer, Shapes]:
    """A network as a layer that trains, and the shapes of its inputs."""
    if isinstance(network, Layer):
        if shape is None:
            raise GraphError(
                "shape=None; valid is the input's shape with the batch, such as (16, 3, 224, 224)"
            )
        return network, shape
    layer = CarriedNetwork(network, shape)
    return layer, [list(sizes) for sizes in layer.shapes]


class _Normalization(BatchNorm2d):
    """A batch normalization node of a graph as a layer, for inputs of rank 2 to 5."""

    ranks = (2, 3, 4, 5)  # type: ignore[assignment]


class CarriedNetwork(Layer):
    """A captured graph as a layer, with its constants as parameters.

    Floating-point constants with at least one axis and more than one element are trained, under the
    names that they have in the graph.  Batch normalizations take the batch's statistics in training
    and store running statistics, unless they are frozen.

    Args:
        source: whatever :func:`minidnn.compile` takes.
        shape: of its inputs; None where ``source`` says it.
    """

    def __init__(self, source: Any, shape: Shapes | None) -> None:
        graph = _captured(source, shape)
        if graph.states:
            raise GraphError(
                f"network {graph.name} has states, {graph.states[0].name!r} among them; valid for "
                "training are graphs whose weights are constants"
            )
        self.shapes: Inputs = tuple(value.shape for value in graph.inputs)
        self._source, self._graphs = (source,), {self.shapes: graph}
        self._declared = [(value.name, value.shape[1:], value.dtype) for value in graph.inputs]
        fixed = _fixed(source)
        #: Attributes that hold parameters by names of constants, and layers by names of nodes.
        self._places: dict[str, str] = {}
        for node in graph.nodes:
            if _is_normalization(node):
                self._add_normalization(node, fixed)
        inside = {value for node in graph.nodes if _is_normalization(node) for value in node.inputs}
        outside = {v for node in graph.nodes if not _is_normalization(node) for v in node.inputs}
        for constant in graph.constants:
            if _trains(constant) and (constant in outside or constant not in inside):
                self._places[constant.name] = attribute = self._free(constant.name)
                parameter = Parameter(constant.data, trainable=constant.name not in fixed)
                setattr(self, attribute, parameter)

    def _free(self, name: str) -> str:
        """An attribute name that is not in use yet: ``name``, with underscores added if need be."""
        while hasattr(type(self), name) or name in vars(self):
            name += "_"
        return name

    def _add_normalization(self, node: Node, fixed: Collection[str]) -> None:
        """Adds a layer for a batch normalization node, with its constants as parameters."""
        weight, bias, mean, var = (value for value in node.inputs[1:])
        layer = _Normalization(weight.shape[0], node.op.eps)  # type: ignore[attr-defined]
        held = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
        for name, value in held.items():
            trains = name in ("weight", "bias") and value.name not in fixed
            array = np.asarray(value.data)  # type: ignore[attr-defined]
            setattr(layer, name, Parameter(array, trainable=trains))
        prefix, dot, last = weight.name.rpartition(".")
        name = prefix if dot and last == "weight" and prefix not in vars(self) else node.name
        attribute = self._free(name.replace("@", "_"))
        self._places[node.name] = attribute
        setattr(self, attribute, layer)

    def _declared_inputs(self) -> Declared | None:
        return tuple(self._declared)

    def forward(self, *inputs: Any) -> Any:
        """Adds the nodes of the graph for inputs of these shapes."""
        graph = self._graph(tuple(value.shape for value in inputs))
        trace = current_trace()
        values: dict[Value, Value] = dict(zip(graph.inputs, inputs, strict=True))
        for node in graph.nodes:
            if node.name in self._places and _is_normalization(node):
                layer = getattr(self, self._places[node.name])
                values[node.outputs[0]] = layer(self._value(values, node.inputs[0]))
                continue
            operands = [self._value(values, value) for value in node.inputs]
            with trace.scope(node.source, leaf=True):
                values.update(zip(node.outputs, trace.apply(node.op, *operands), strict=True))
        results = [self._value(values, value) for value in graph.outputs]
        return packed(results, graph.output_names)

    def _value(self, values: dict[Value, Value], value: Value) -> Value:
        """The value that stands for a value of the graph in the trace, made at first use for
        constants.
        """
        known = values.get(value)
        if known is None:
            assert isinstance(value, Constant)
            attribute = self._places.get(value.name) if _trains(value) else None
            if attribute is not None:
                stored = self.parameter(attribute)
                assert stored is not None
                known = stored
            else:
                trace, data = current_trace(), value
                known = trace.constant(value, value.name, value.type, lambda: np.asarray(data.data))
            values[value] = known
        return known

    def _graph(self, shapes: Inputs) -> Graph:
        """The graph for inputs of these shapes; GraphError if its weights differ from the first
        graph's.
        """
        graph = self._graphs.get(shapes)
        if graph is None:
            graph = _captured(self._source[0], [list(shape) for shape in shapes])
            constants = {c.name: c for c in self._graphs[self.shapes].constants if _trains(c)}
            for constant in graph.constants:
                first = constants.get(constant.name)
                if first is not None and not np.array_equal(first.data, constant.data):
                    raise GraphError(
                        f"network {graph.name}: its weight {constant.name!r} is another one for "
                        f"inputs of shape {', '.join(map(str, shapes))} than for "
                        f"{', '.join(map(str, self.shapes))}; valid are batches of that size"
                    )
            self._graphs[shapes] = graph
        return graph


def _captured(source: Any, shape: Any) -> Graph:
    """The graph of a source in evaluation mode; training gives its normalizations the batch's
    statistics.
    """
    with in_evaluation(source):
        return graph_of(source, shape)


def _is_normalization(node: Node) -> bool:
    """Whether a node is a batch normalization whose weights and statistics are constants."""
    return isinstance(node.op, ops.BatchNorm) and all(
        isinstance(value, Constant) for value in node.inputs[1:]
    )


def _trains(constant: Constant) -> bool:
    """Whether a constant is trained, by its type."""
    return constant.dtype in FLOATS and constant.type.rank > 0 and constant.type.size > 1


def _fixed(source: Any) -> set[str]:
    """The names of a module's parameters and buffers that are not trained.  Warns of dropout and of
    normalizations in evaluation mode, which train otherwise here.
    """
    if not callable(getattr(source, "named_parameters", None)):
        return set()
    dropping = [
        name
        for name, module in source.named_modules()
        if type(module).__name__.endswith("Dropout") or "Dropout" in type(module).__name__
        if getattr(module, "p", 0)
    ]
    if dropping:
        warnings.warn(
            f"{type(source).__name__}: a PyTorch module trains here without dropout; these drop "
            f"nothing: {', '.join(dropping):.200}",
            MiniDNNWarning,
            stacklevel=5,
        )
    normalizing = [
        name
        for name, module in source.named_modules()
        if source.training and not module.training and hasattr(module, "running_mean")
    ]
    if normalizing:
        warnings.warn(
            f"{type(source).__name__}: normalizations train here with the batch's statistics; "
            f"these are in evaluation mode: {', '.join(normalizing):.200}",
            MiniDNNWarning,
            stacklevel=5,
        )
    frozen = {name for name, parameter in source.named_parameters() if not parameter.requires_grad}
    return frozen | {name for name, _ in source.named_buffers()}
