"""The table of layers, and the totals of a graph."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.errors import GraphError
from minidnn.graph.totals import Totals, totals
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.layers.parameter import Parameter
from tests.storage.sample import nested


class Net(L.Layer):
    """A layer called twice, one never called, an operation between layers, a block."""

    def __init__(self) -> None:
        self.conv = L.Conv2d(3, 8, 3, padding=1)
        self.norm = L.BatchNorm2d(8)
        self.relu = L.ReLU()
        self.aux = L.Sequential(L.Linear(3, 4), L.ReLU())
        self.block = L.Sequential(L.Conv2d(8, 8, 1, bias=False), L.Identity())

    def forward(self, x):
        y = self.relu(self.norm(self.conv(x)))
        return L.Flatten()(self.relu(self.block(y) + y))


EXPECTED = """\
Net: 2x3x4x4
Layer    Type         Output      Parameters  Operations
--------------------------------------------------------
conv     Conv2d       2x8x4x4            224      14,080
norm     BatchNorm2d  2x8x4x4             16       2,816
relu     ReLU x2      2x8x4x4              -         512
block.0  Conv2d       2x8x4x4             64       4,096
block.1  Identity     2x8x4x4              -           -
add      Add          2x8x4x4              -         256
flatten  Flatten      2x128                -           -
aux.0    Linear       not called          16           -
aux.1    ReLU         not called           -           -
--------------------------------------------------------
Parameters: 320, and 17 stored statistics
Weights:    1,352 bytes (0.00 MiB)
Operations: 21,760 (a multiply-add counts as 2)"""


def test_the_whole_table() -> None:
    # conv: 2*4*4*8 outputs of 2*3*3*3 operations and a bias; block.0: of 2*8 operations
    assert 2 * 4 * 4 * 8 * (2 * 27 + 1) == 14_080 and 2 * 4 * 4 * 8 * 16 == 4_096
    assert Net().summary((2, 3, 4, 4)) == EXPECTED


def test_a_network_of_one_layer() -> None:
    lines = L.Conv2d(3, 4, 1).summary((2, 3, 4, 4)).splitlines()
    assert lines[3].split() == ["(network)", "Conv2d", "2x4x4x4", "16", "896"]


def test_several_inputs_and_outputs_and_a_layer_used_twice() -> None:
    x, z = md.Input((3, 4, 4)), md.Input((3, 4, 4), name="z")
    conv = L.Conv2d(3, 3, 1)
    text = md.Model([x, z], [conv(x) + z, conv(z)]).summary((2, 3, 4, 4), (2, 3, 4, 4))
    lines = text.splitlines()
    assert lines[0] == "Model: 2x3x4x4, 2x3x4x4"
    assert lines[3].split() == ["conv2d", "Conv2d", "x2", "2x3x4x4", "12", "1,344"]
    assert lines[4].split() == ["add", "Add", "2x3x4x4", "-", "96"]
    assert "Parameters: 12" in lines  # counted once


def test_parameters_of_a_layer_that_has_layers() -> None:
    class Scaled(L.Layer):
        def __init__(self) -> None:
            self.scale = Parameter((3,), lambda random, shape: np.ones(shape, np.float32))
            self.relu = L.ReLU()

        def forward(self, x):
            (scale,) = self.constants("scale")
            return self.relu(x) + scale

    lines = L.Sequential(Scaled()).summary((2, 3)).splitlines()
    assert [line.split() for line in lines[3:6]] == [
        ["0.relu", "ReLU", "2x3", "-", "6"],
        ["0.add", "Add", "2x3", "-", "6"],
        ["0", "Scaled", "3", "-"],
    ]


def test_a_parameter_of_two_layers_counts_once() -> None:
    one, two = L.Linear(4, 4, bias=False), L.Linear(4, 4, bias=False)
    two.weight = one.weight
    text = L.Sequential(one, two).summary((1, 4))
    assert "Parameters: 16\nWeights:    64 bytes" in text


# Learned parameters as torchvision's documentation gives them, and its GFLOPS, which are
# multiply-adds of contractions.
@pytest.mark.parametrize(
    ("name", "size", "parameters", "giga"),
    [
        ("resnet18", 224, 11_689_512, 1.814),
        ("resnet50", 224, 25_557_032, 4.089),
        ("squeezenet1_1", 224, 1_235_496, 0.349),
        ("densenet201", 224, 20_013_928, 4.291),
    ],
)
def test_networks_of_the_zoo(name: str, size: int, parameters: int, giga: float) -> None:
    network = getattr(models, name)()
    text = network.summary((1, 3, size, size))
    lines = text.splitlines()
    assert max(map(len, lines)) < 100
    assert text.isascii() and not any(line.endswith(" ") for line in lines)
    assert any(line.startswith(f"Parameters: {parameters:,}") for line in lines)
    # Operations of contractions, from the table: 2 for each multiply-add, 1 for each bias.
    rows = [line.split() for line in lines if "  Conv2d  " in line or "  Linear  " in line]
    operations = sum(int(row[-1].replace(",", "")) for row in rows)
    assert operations / 2e9 == pytest.approx(giga, rel=0.01)


def test_long_names_and_large_numbers_stay_below_100() -> None:
    layer: L.Layer = L.Conv2d(512, 512, 3, padding=1)
    for name in ("a_rather_long_name", "of_a_block", "within_blocks", "of_a_large_network"):
        layer = L.Sequential({name: layer, "Identity_of_a_rather_long_name": L.Identity()})
    lines = layer.summary((512, 512, 1024, 1024)).splitlines()
    assert max(map(len, lines)) < 100
    assert "..." in lines[3] and "512x512x1024x1024" in lines[3]


def test_a_shape_that_does_not_fit() -> None:
    with pytest.raises(GraphError, match="conv"):
        Net().summary((2, 4, 4, 4))
    with pytest.raises(GraphError, match="shape"):
        Net().summary((2, 0, 4, 4))


def test_totals_of_a_graph() -> None:
    graph = to_graph(Net(), (2, 3, 4, 4))
    learned, statistics = 320 - 16, 16  # what runs: all but aux and num_batches_tracked
    elements = learned + statistics
    assert totals(graph) == Totals(8, 21_760, 7, elements, 4 * elements)


def test_totals_look_into_bodies() -> None:
    # ReLU and ScaleShift in the body, ScaleShift and Add beside the region
    graph = nested(1)
    size = TensorType((1, 4, 6, 6)).size
    found = totals(graph)
    assert (found.nodes, found.constants, found.elements) == (4, 1, 4)
    assert found.operations == 4 * size
