"""A quantized network beside the one that it was made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.comparison.original import Original
from minidnn.errors import GraphError
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node
from minidnn.graph.plain import plain
from minidnn.quantization.quantize import folded
from minidnn.runtime.arrays import random_array
from minidnn.sizes.sized_graph import SizedGraph


def original(model: Any, network: Any, inputs: Any, seed: int) -> Original:
    """The network in float32, and those of its layers that the quantized graph has, too."""
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
    """The graph for the sizes of these inputs or shapes, or for those halfway in the ranges."""
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
    """An array for each input; random ones if none are given."""
    if inputs is None:
        random = np.random.default_rng(seed)
        return [random_array(random, value.shape, np.dtype(value.dtype)) for value in model.inputs]
    if isinstance(inputs, dict):
        inputs = [inputs.get(value.name) for value in model.inputs]
    given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    arrays = [np.asarray(plain(array), np.float32) for array in given]
    shapes, valid = [array.shape for array in arrays], [value.shape for value in model.inputs]
    if shapes != valid:
        raise GraphError(f"inputs have shapes {shapes}; valid are {valid}")
    return arrays
