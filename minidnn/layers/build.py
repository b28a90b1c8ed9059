"""From layers to a graph: binds the batch size and records every layer's nodes."""

from __future__ import annotations

from minidnn.errors import GraphError
from minidnn.graph.ir import Graph
from minidnn.layers.inputs import Shapes
from minidnn.layers.layer import Layer


def to_graph(
    network: Layer, shapes: Shapes, dtype: str = "float32", *, states: bool = False
) -> Graph:
    """The graph of a network for inputs of these shapes.

    ``states`` makes its parameters states, which a store holds, instead of constants.

    GraphError names the layer where shapes or dtypes do not fit.
    """
    if not isinstance(network, Layer):
        raise GraphError(f"network={network!r:.80} ({type(network).__name__}) is not a Layer")
    return network._to_graph(shapes, dtype, states)
