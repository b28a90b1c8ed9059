"""From layers to a graph: binds the batch size and records every layer's nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph.ir import Graph
from minidnn.graph.trace import tracing
from minidnn.graph.types import TensorType
from minidnn.layers.functional import Model, results_of
from minidnn.layers.layer import Layer

#: One shape, a shape per input, or shapes by the inputs' names; the batch included.
Shapes = Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]]


def to_graph(network: Layer, shapes: Shapes, dtype: str = "float32") -> Graph:
    """The graph of a network for inputs of these shapes.

    GraphError names the layer where shapes or dtypes do not fit.
    """
    if not isinstance(network, Layer):
        raise GraphError(f"network={network!r:.80} ({type(network).__name__}) is not a Layer")
    with tracing(type(network).__name__) as trace:
        trace.layer_paths = {id(layer): path for path, layer in network.named_layers()}
        inputs = [trace.input(type, name) for name, type in _input_types(network, shapes, dtype)]
        leaf = not any(True for _ in network.children())
        if leaf:
            trace.layer_paths[id(network)] = type(network).__name__.lower()
            with trace.scope("", leaf=False):
                network.check_count(inputs)
                results = network.forward(*inputs)
        else:
            results = network(*inputs)
    outputs = results_of(type(network).__name__, results)
    names = [str(name) for name in results] if isinstance(results, Mapping) else None
    return trace.graph(outputs, names)


def _input_types(network: Layer, shapes: Shapes, dtype: str) -> list[tuple[str, TensorType]]:
    declared = network.input_types if isinstance(network, Model) else None
    if isinstance(shapes, Mapping):
        if declared is None or any(name is None for name, _, _ in declared):
            raise GraphError(
                f"shapes={shapes!r} names inputs, but {type(network).__name__} has no named "
                "inputs; give shapes in the order of forward's arguments"
            )
        names = [str(name) for name, _, _ in declared]
        if sorted(names) != sorted(shapes):
            raise GraphError(f"shapes names {sorted(shapes)}; valid is exactly {sorted(names)}")
        listed: list[Any] = [shapes[name] for name in names]
    elif not isinstance(shapes, (tuple, list)):
        raise GraphError(
            f"shapes={shapes!r:.100} ({type(shapes).__name__}); valid is a shape, the batch "
            "included, a sequence of shapes, or a dict of them by input name"
        )
    elif len(shapes) and all(isinstance(size, int) for size in shapes):
        listed = [shapes]
    else:
        listed = list(shapes)
    if declared is not None and len(declared) != len(listed):
        raise GraphError(f"shapes gives {len(listed)} inputs; the model has {len(declared)}")
    types = []
    for i, shape in enumerate(listed):
        _check_shape(i, shape)
        own = declared[i] if declared is not None else (None, None, dtype)
        name = own[0] or ("input" if len(listed) == 1 else f"input{i}")
        types.append((name, TensorType(tuple(shape), own[2])))
    return types


def _check_shape(index: int, shape: Any) -> None:
    valid = isinstance(shape, Sequence) and len(shape) >= 1
    if not valid or not all(type(size) is int and size >= 1 for size in shape):
        raise GraphError(
            f"input {index}: shape={shape!r:.100}; valid is a sequence of ints of at least 1, "
            "the batch size first"
        )
