"""compare: finds the first layer that minidnn computes otherwise than the original engine."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from minidnn.backends.backend import check_not_automatic
from minidnn.comparison.originals import (
    ComparedValue,
    Comparison,
    Original,
    compared,
    onnx_original,
    torch_original,
)
from minidnn.compiler import compile as compile_network
from minidnn.errors import GraphError
from minidnn.executable import results_of
from minidnn.frontends.onnx.model import is_model
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node
from minidnn.graph.types import plain
from minidnn.quantization.quantize import folded
from minidnn.runtime.arrays import random_array
from minidnn.sizes.sized_graph import SizedGraph

DEFAULT_TOLERANCE = 1e-3


def compare(
    model: Any,
    inputs: Any = None,
    *,
    shape: Any = None,
    constants: Mapping[str, Any] | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    seed: int = 0,
    original: Any = None,
    **options: Any,
) -> Comparison:
    """Runs a model in its original engine and in minidnn and compares every layer.

    Or a quantized network, beside the one that it was made of.

    Args:
        model: an ONNX model (path, bytes or ``ModelProto``), which ONNX Runtime runs as it is,
            without rewrites of its own; a ``torch.nn.Module``, which PyTorch runs; or a graph that
            ``quantize`` made.
        inputs: an array, a sequence of them or a dict of them by name (a module's by the names of
            ``forward``'s parameters); None: random ones (by ``seed``), for a module of ``shape``.
        shape, constants: as for ``load_onnx``, with the inputs' shapes where they are given; for a
            module one shape or a sequence of them, and no constants; of a graph with named sizes
            those that are compared, where inputs do not say them.
        tolerance: the largest difference of a layer, as a part of its largest number, that counts
            as equal.
        seed: of random inputs.
        original: of a graph that ``quantize`` made: the network that it was made of, which the
            reference computes in float32. For other models None.
        options: ``device``, ``precision`` and others, as ``compile`` takes them.

    Returns:
        What differs; printed, the first layer beyond the tolerance and its neighbours.

    Raises:
        GraphError: an argument is not valid.
        UnsupportedError: minidnn cannot run all of the model.
        DeviceError: the original engine is not installed.

    >>> print(md.compare("model.onnx"))
    """
    if not isinstance(tolerance, (int, float)) or not 0 < tolerance < math.inf:
        raise GraphError(f"tolerance={tolerance!r}; valid is a number above 0")
    check_not_automatic(options.get("precision"), "comparing, which compiles a network twice")
    seed = plain(seed)
    if type(seed) is not int or seed < 0:
        raise GraphError(f"seed={seed!r}; valid is an int of at least 0")
    torch = sys.modules.get("torch")
    if isinstance(model, SizedGraph):
        model = of_one_size(model, inputs, shape)
    if original is not None or isinstance(model, Graph):
        made = quantized_original(model, original, inputs, seed)
    elif torch is not None and isinstance(model, torch.nn.Module):
        made = torch_original(model, inputs, shape, constants, seed)
    elif is_model(model):
        made = onnx_original(model, inputs, shape, constants, seed)
    else:
        raise GraphError(
            f"model={model!r:.80} is a {type(model).__name__}; valid are ONNX models and PyTorch "
            "modules"
        )
    if not made.layers:
        raise GraphError("the model computes nothing of its inputs: there is no layer to compare")
    usual = compile_network(made.graph, **options)
    pairs = zip(made.outputs, results_of(usual, made.inputs), strict=True)
    outputs = [compared(name, "output", made.results[name], array) for name, array in pairs]
    layers = _layers(made, options)
    return Comparison(made.engine, usual.device, float(tolerance), layers, outputs)


def _layers(made: Original, options: Mapping[str, Any]) -> list[ComparedValue]:
    """Compares every layer, in a program of which all layers are outputs."""
    values = dict.fromkeys(value for _, _, value in made.layers)
    graph = Graph(made.graph.inputs, values, made.graph.nodes, made.graph.name)
    computed = results_of(compile_network(graph, **options), made.inputs)
    results = dict(zip(values, computed, strict=True))
    return [
        compared(name, kind, made.results[name], results[value])
        for name, kind, value in made.layers
    ]


def quantized_original(model: Any, network: Any, inputs: Any, seed: int) -> Original:
    """The results of a network in float32, for the layers that its quantized graph has, too."""
    if not isinstance(model, Graph) or network is None:
        raise GraphError(
            f"model={model!r:.80} with original={network!r:.80}; valid are a graph that quantize "
            "made and the network that it was made of"
        )
    shapes = [value.shape for value in model.inputs]
    source = folded(network, shapes[0] if len(shapes) == 1 else shapes)
    if [value.type for value in source.inputs] != [value.type for value in model.inputs]:
        raise GraphError(
            f"original={network!r:.80} takes {list(source.inputs)}; valid is a network that takes "
            f"{list(model.inputs)}, as the model does"
        )
    arrays = _arrays(model, inputs, seed)
    names = [f"output{i}" for i in range(len(model.outputs))]
    results: dict[str, np.ndarray] = {}

    def note(node: Node, made: tuple[np.ndarray, ...]) -> None:
        results[node.name] = made[0]

    outputs = evaluate(source, arrays, observe=note)
    layers = [
        (node.name, node.op.name, node.output)
        for node in model.nodes
        if node.name in results and len(node.outputs) == 1
        if node.output.shape == results[node.name].shape
    ]
    results |= dict(zip(names, outputs, strict=True))
    return Original("float32", model, layers, names, arrays, results)


def of_one_size(model: SizedGraph, inputs: Any, shape: Any) -> Graph:
    """The graph for the sizes of these inputs or shapes, or else for the middle of each range."""
    if shape is None and isinstance(inputs, dict):
        shape = {name: np.shape(plain(array)) for name, array in inputs.items()}
    elif shape is None and isinstance(inputs, (list, tuple)):
        shape = [np.shape(plain(array)) for array in inputs]
    elif shape is None and inputs is not None:
        shape = np.shape(plain(inputs))
    if shape is None:
        return model.at({dim.name: dim.halfway for dim in model.dims})
    return model.of_shapes(shape)


def _arrays(model: Graph, inputs: Any, seed: int) -> list[np.ndarray]:
    """An array for each input; random arrays if none are given."""
    if inputs is None:
        random = np.random.default_rng(seed)
        return [random_array(random, value.shape, np.dtype(value.dtype)) for value in model.inputs]
    if isinstance(inputs, dict):
        inputs = [inputs.get(value.name) for value in model.inputs]
    listed = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    arrays = [np.asarray(plain(array), np.float32) for array in listed]
    shapes, valid = [array.shape for array in arrays], [value.shape for value in model.inputs]
    if shapes != valid:
        raise GraphError(f"inputs have shapes {shapes}; valid are {valid}")
    return arrays
