"""Shapes from the layers of a network."""

from __future__ import annotations

import json

import pytest

from minidnn import lab
from minidnn import layers as L
from minidnn.cli import main
from minidnn.errors import UnsupportedError
from minidnn.lab.operands import ConvolutionShape, ProductShape
from minidnn.layers.build import to_graph

NET = L.Sequential(
    L.Conv2d(3, 8, 3, stride=2, padding=1),
    L.Conv2d(8, 8, 3, padding=1),
    L.Conv2d(8, 8, 3, padding=1),
    L.Conv2d(8, 8, 3, padding=1, groups=8),
    L.Conv2d(8, 8, 3, stride=(1, 2), padding=1),
    L.Conv2d(8, 8, 3, padding=((0, 1), (0, 1))),
    L.Flatten(),
    L.Linear(8 * 6 * 2, 10),
)
GRAPH = to_graph(NET, (2, 3, 13, 12))


def test_layers_are_shapes_each_once() -> None:
    found = lab.network_shapes(lab.ladder_of("conv"), GRAPH)
    assert found == [
        ConvolutionShape(2, 3, 13, 12, 8, 3, 3, 2, 1),
        ConvolutionShape(2, 8, 7, 6, 8, 3, 3, 1, 1),
    ]
    for name in ("input-gradient", "weight-gradient", "conv-cpu"):
        ladder = lab.ladder_of(name)
        assert [vars(one) for one in lab.network_shapes(ladder, GRAPH)] == list(map(vars, found))
        assert {type(one) for one in lab.network_shapes(ladder, GRAPH)} == {type(ladder.shape)}
    assert lab.network_shapes(lab.ladder_of("product"), GRAPH) == [ProductShape(2, 10, 96)]


def test_ladders_and_networks_without_layers() -> None:
    with pytest.raises(UnsupportedError, match="network: memory computes no layers of networks"):
        lab.network_shapes(lab.ladder_of("memory"), GRAPH)
    plain = to_graph(L.ReLU(), (1, 3, 4, 4))
    with pytest.raises(UnsupportedError, match="none of its 1 layers is one that conv computes"):
        lab.network_shapes(lab.ladder_of("conv"), plain)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lab", "model", "conv", "--step", "general", "--network", "resnet18", "--json"]
    assert main([*command, "--batch", "4", "--size", "64"]) == 0
    shapes = json.loads(capsys.readouterr().out)["shapes"]
    assert len(shapes) == 11 and {shape["batch"] for shape in shapes} == {4}
    assert (shapes[0]["height"], shapes[0]["window_height"], shapes[0]["stride"]) == (64, 7, 2)
    assert main(["lab", "tune", "conv", "--step", "tiled", "--network", "resnet18"]) == 2
    assert "--shape, --network: 11 shapes; valid is one" in capsys.readouterr().err
