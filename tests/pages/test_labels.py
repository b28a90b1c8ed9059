"""Regions are called by the layers of the network that a user wrote."""

from __future__ import annotations

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.cli.explain import labels
from minidnn.graph.ir import Node
from minidnn.graph.layout import PLANAR
from minidnn.graph.operators.movement import Reorder
from minidnn.layers.build import to_graph
from minidnn.layers.symbol import Symbol


class Small(L.Layer):
    """Three layers, one of which has no name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = L.Conv2d(3, 8, 3, padding=1)
        self.head = L.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Symbol) -> Symbol:
        y: Symbol = self.head(L.ReLU()(self.stem(x)))
        return y


def labels_of(network: L.Layer, shape: tuple[int, ...]) -> list[str]:
    return labels(md.compile(network, shape, device="reference").graph.nodes)


def test_a_residual_network() -> None:
    found = labels_of(models.resnet18(), (1, 3, 64, 64))
    assert found[:4] == [
        "conv1 + relu",
        "maxpool",
        "layer1.0.conv1 + relu",
        "layer1.0.conv2 + Add + relu",
    ]
    assert "layer2.0.downsample.0 (Conv2d)" in found and found[-1] == "fc"
    assert len(set(found)) == len(found)


def test_layers_whose_names_are_numbers_and_neighbours_of_other_blocks() -> None:
    found = labels_of(models.squeezenet1_1(), (1, 3, 64, 64))
    assert found[0] == "features.0 (Conv2d) + ReLU"
    assert "features.4.concat + features.5" in found


def test_a_layer_without_a_name() -> None:
    assert labels_of(Small(), (1, 3, 8, 8)) == ["stem + relu", "head"]


def test_what_is_moved_to_another_layout() -> None:
    graph = to_graph(md.Sequential(L.Conv2d(3, 8, 3)), (1, 3, 8, 8))
    moved = [Node(Reorder(PLANAR), [value], "NCHW") for value in (*graph.inputs, *graph.outputs)]
    assert labels([*graph.nodes, *moved]) == [
        "0 (Conv2d)",
        "input, moved to NCHW",
        "0 (Conv2d), moved to NCHW",
    ]


def test_a_layer_that_computes_twice() -> None:
    twice = L.Conv2d(3, 3, 3, padding=1)
    found = labels_of(md.Sequential(twice, twice), (1, 3, 8, 8))
    assert found == ["0 (Conv2d)", "0 (Conv2d) #2"]


@pytest.mark.parametrize("count", [3, 4, 6])
def test_long_chains_are_counted(count: int) -> None:
    chain = md.Sequential(L.Conv2d(3, 8, 1), *(L.Sigmoid() for _ in range(count)))
    found = labels_of(chain, (1, 3, 8, 8))
    assert found == [
        "0 (Conv2d) + Sigmoid + Sigmoid + Sigmoid" + {3: "", 4: " + 1 more", 6: " + 3 more"}[count]
    ]
