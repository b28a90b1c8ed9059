"""Records the graph of a network: binds the batch size and traces every layer."""

from __future__ import annotations

from minidnn.errors import GraphError
from minidnn.graph.ir import Graph
from minidnn.layers.arguments import Shapes
from minidnn.layers.layer import Layer

_MODES = ("eval", "train")


def to_graph(
    network: Layer,
    shapes: Shapes,
    dtype: str = "float32",
    *,
    mode: str = "eval",
    states: bool | None = None,
    ranks: int = 1,
) -> Graph:
    """The graph of a network for inputs of these shapes.

    In the mode "train" normalizations take the statistics of the batch and update those that they
    store, and dropout is active.  ``states`` makes the parameters states, which a store holds,
    instead of constants; by default in training.  ``ranks`` is the number of processes over whose
    batches normalizations take statistics in training.

    GraphError names the layer where shapes or dtypes do not fit.
    """
    if not isinstance(network, Layer):
        raise GraphError(f"network={network!r:.80} ({type(network).__name__}) is not a Layer")
    if mode not in _MODES:
        raise GraphError(f"mode={mode!r:.80}; valid are {' and '.join(map(repr, _MODES))}")
    training = mode == "train"
    with_states = training if states is None else states
    return network._to_graph(shapes, dtype, with_states, training, ranks)
