"""What the tests of bad input share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minidnn import layers as L
from minidnn.layers.build import to_graph


def graph(layer: L.Layer, *shapes: Any, **arguments: Any) -> Callable[[], Any]:
    return lambda: to_graph(layer, shapes if len(shapes) != 1 else shapes[0], **arguments)


def stack(*layers: L.Layer) -> L.Sequential:
    return L.Sequential({f"l{i}": layer for i, layer in enumerate(layers)})


def leaf() -> L.Linear:
    return L.Linear(2, 2)
