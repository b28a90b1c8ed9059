"""What comparing needs of a model's own engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.graph.ir import Graph, Value


@dataclass(frozen=True)
class Original:
    """A model as its own engine runs it.

    Attributes:
        engine: its name and version.
        graph: minidnn's graph of the model.
        layers: name, kind and value of each layer, in order.
        outputs: the graph's outputs, by name.
        inputs: for the graph.
        results: what the engine computes, by name.
    """

    engine: str
    graph: Graph
    layers: Sequence[tuple[str, str, Value]]
    outputs: Sequence[str]
    inputs: Sequence[np.ndarray]
    results: Mapping[str, np.ndarray]
