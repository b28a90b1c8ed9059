"""Graphs to save: a small network with every kind of attribute, and a region made of a body."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from minidnn import layers as L
from minidnn import scalar
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import Expression, argument, constant
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Operator, Windowed
from minidnn.graph.registry import register
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.storage import load_graph


def load_fixed(path: Path) -> Graph:
    """The graph in a file, which is for one size."""
    graph = load_graph(path)
    assert isinstance(graph, Graph)
    return graph


class Net(L.Layer):
    def __init__(self) -> None:
        self.conv = L.Conv2d(3, 8, 3, padding=1)
        self.norm = L.BatchNorm2d(8)
        self.skip = L.Conv2d(3, 8, 1, bias=False)
        self.own = L.Elementwise(
            lambda x, s: scalar.clip(x * s, -np.inf, 3.0), name="own", s=np.full(8, 0.5)
        )
        self.pool = L.MaxPool2d(2)
        self.mean = L.AdaptiveAvgPool2d((None, 1))
        self.head = L.Linear(32, 5)

    def forward(self, x):
        y = self.norm(self.conv(x)) + self.skip(x) / 2
        y = self.mean(self.pool(self.own(y)))
        return {"scores": self.head(L.Flatten()(y)), "features": y}


def net() -> Graph:
    network = Net()
    network.initialize(7)
    return to_graph(network, (2, 3, 8, 8))


class Mode(enum.Enum):
    FAST = "fast"
    EXACT = "exact"


@dataclass(frozen=True)
class Tile:
    rows: int
    columns: int | None = None


@register
@dataclass(frozen=True)
class Region(Operator):
    """What fusion makes: a body, with attributes of every kind that can be saved."""

    body: Graph
    mode: Mode = Mode.FAST
    tiles: tuple[Tile, ...] = ()
    lanes: Literal["channels", "pixels"] = "channels"
    epilogue: Expression | None = None
    window: Windowed | None = None
    scale: float = 1.0
    label: str | None = None

    kind = "reduction"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        given = tuple(value.type for value in self.body.inputs)
        self.require(inputs == given, f"operands are {inputs}; valid are {given}")
        return tuple(value.type for value in self.body.outputs)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return evaluate(self.body, inputs)


def nested(levels: int = 2) -> Graph:
    """A graph of a region, of a region, ...; a constant is shared by the two
    innermost graphs, and a name is used twice."""
    type = TensorType((1, 4, 6, 6))
    shared = Constant(TensorType((4,)), "scale", np.linspace(-1, 1, 4, dtype=np.float32))
    other = Constant(TensorType((4,)), "scale", np.linspace(2, 3, 4, dtype=np.float32))
    x = Value(type, "x")
    relu = Node(ops.ReLU(), [x], "relu")
    scaled = Node(ops.ScaleShift(), [relu.output, shared, shared], "scale")
    graph = Graph([x], [scaled.output, x], [relu, scaled], "body")
    for level in range(levels):
        x = Value(type, f"x{level}")
        region = Region(
            graph,
            Mode.EXACT,
            (Tile(4, 8), Tile(2)),
            "pixels",
            scalar.maximum(argument(0), constant(-np.inf)),
            ops.MaxPool2d((2, 2), (2, 2)),
            float("nan"),
            'a "label"',
        )
        node = Node(region, [x], f"region{level}")
        own = other if level else shared
        after = Node(ops.ScaleShift(), [node.outputs[0], own, own], f"after{level}", "layer.after")
        last = Node(ops.Add(), [after.output, node.outputs[1]], "last") if not level else after
        nodes = dict.fromkeys((node, after, last))
        graph = Graph([x], [last.output, own], nodes, f"level{level}", ("y", "w"))
    return graph
