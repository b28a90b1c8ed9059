"""Parameters of one's own, used as PyTorch's are, and arrays assigned to parameters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, WeightsError
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph

RANDOM = np.random.default_rng(5)
IMAGE = RANDOM.standard_normal((2, 3, 4, 5)).astype(np.float32)


class TheirBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g = torch.nn.Parameter(torch.ones(3, 1, 1))
        self.shift = torch.nn.Parameter(torch.zeros(5))
        self.conv = torch.nn.Conv2d(3, 3, 1)
        self.scale = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) * self.g + self.shift - 2 * self.scale * (self.g**2).sum() / x.exp()


class OurBlock(L.Layer):
    def __init__(self) -> None:
        self.g = L.Parameter(np.ones((3, 1, 1)))
        self.shift = L.Parameter(torch.zeros(5))
        self.conv = L.Conv2d(3, 3, 1)
        self.scale = L.Parameter(0.5)

    def forward(self, x: Any) -> Any:
        return self.conv(x) * self.g + self.shift - 2 * self.scale * (self.g**2).sum() / np.exp(x)


def computed(network: L.Layer, x: np.ndarray) -> np.ndarray:
    graph = to_graph(network, x.shape)
    check(graph)
    (found,) = evaluate(graph, [x], dtype="float64")
    return found


def test_a_layer_of_ones_own_beside_pytorch() -> None:
    torch.manual_seed(2)
    theirs = torch.nn.Sequential(TheirBlock(), TheirBlock()).double()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter).float())
        expected = theirs(torch.from_numpy(IMAGE).double()).numpy()
    ours = L.Sequential(OurBlock(), OurBlock())
    assert set(ours.state_dict()) == set(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    np.testing.assert_allclose(computed(ours, IMAGE), expected, rtol=1e-10)
    graph = to_graph(ours, IMAGE.shape)
    names = {value.name for node in graph.nodes for value in node.inputs}
    assert set(theirs.state_dict()) <= names
    for device in ("reference", "cpu"):
        found = md.compile(ours, IMAGE.shape, device=device)(IMAGE)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    symbol = md.Input(IMAGE.shape[1:])
    net = md.Model(symbol, ours[1](ours[0](symbol)))
    np.testing.assert_allclose(computed(net, IMAGE), expected, rtol=1e-10)


def test_a_shared_parameter_is_one() -> None:
    class Twice(L.Layer):
        def __init__(self) -> None:
            self.first, self.second = OurBlock(), OurBlock()
            self.second.g = self.first.g

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x))

    net = Twice()
    assert len(dict(net.named_parameters())) == 9
    first: Any = net.first
    first.g = np.full((3, 1, 1), 2.0)
    np.testing.assert_array_equal(net.state_dict()["second.g"], np.full((3, 1, 1), 2.0))
    constants = {v for node in to_graph(net, IMAGE.shape).nodes for v in node.inputs}
    assert [v.name for v in constants if v.name.endswith(".g")] == ["first.g"]


def test_parameters_as_results_and_operands_of_layers() -> None:
    class Token(L.Layer):
        def __init__(self) -> None:
            self.token = L.Parameter(np.arange(4.0).reshape(1, 1, 4))
            self.position = L.Parameter(np.ones((1, 3, 4)))

        def forward(self, x: Any) -> Any:
            return L.Concat()(self.token, x) + self.position, self.position

    graph = to_graph(Token(), (1, 2, 4))
    found, position = evaluate(graph, [np.zeros((1, 2, 4), np.float32)])
    np.testing.assert_array_equal(found[0, 0], [1, 2, 3, 4])
    np.testing.assert_array_equal(position, np.ones((1, 3, 4)))


def test_arrays_are_assigned_to_parameters() -> None:
    net: Any = L.Sequential(L.Linear(3, 2), L.BatchNorm1d(2))
    weight = np.arange(6.0).reshape(2, 3)
    net[0].weight = weight
    net[0].bias = torch.nn.Parameter(torch.tensor([1.0, -1.0]).half())
    net[1].running_mean = np.array([0.5, 0.25])
    net[1].num_batches_tracked = np.array(7)
    weight[:] = np.nan  # it was copied
    state = net.state_dict()
    assert all(isinstance(p, L.Parameter) for _, p in net.named_parameters())
    np.testing.assert_array_equal(state["0.weight"], np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(state["0.bias"], [1, -1])
    np.testing.assert_array_equal(state["1.running_mean"], [0.5, 0.25])
    assert state["1.num_batches_tracked"] == 7
    assert state["0.weight"].dtype == np.float32
    net[0].bias = None
    assert "0.bias" not in net.state_dict()
    x = np.ones((1, 3), np.float32)
    wanted = (np.array([[3.0, 12.0]]) - [0.5, 0.25]) / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(computed(net, x), wanted)


class Uses(L.Layer):
    def __init__(self, parameter: L.Parameter) -> None:
        self.hold = lambda: parameter

    def forward(self, x: Any) -> Any:
        return x * self.hold()


def fc() -> Any:
    return L.Linear(3, 2)


WRONG: list[tuple[type[Exception], Callable[[], Any], str]] = [
    (
        WeightsError,
        lambda: setattr(fc(), "weight", np.ones((3, 2))),
        "Linear.weight = ndarray: wrong shape: the array is (3, 2), valid is (2, 3); valid is an "
        "array of float32[2, 3], another Parameter, or None for no weight",
    ),
    (
        WeightsError,
        lambda: setattr(fc(), "bias", np.array([1, 2])),
        "Linear.bias = ndarray: wrong dtype: the array is int64, valid is a float dtype; valid is",
    ),
    (WeightsError, lambda: setattr(fc(), "bias", 1.0), "wrong shape: the array is (), valid is (2"),
    (WeightsError, lambda: setattr(fc(), "bias", "a"), "Linear.bias = str: wrong shape: the array"),
    (
        WeightsError,
        lambda: setattr(fc(), "bias", [[1.0], [1.0, 2.0]]),
        "Linear.bias = list: setting an array element with a sequence",
    ),
    (
        GraphError,
        lambda: L.Parameter((3, 1)),
        "Parameter: shape=(3, 1) without initializer=; valid are a shape and a function of a "
        "generator and the shape, or an array in the shape's place",
    ),
    (
        GraphError,
        lambda: L.Parameter("abc"),
        "Parameter: 'abc' (str) is no array of numbers; valid are an array, or a shape and an ini",
    ),
    (
        GraphError,
        lambda: to_graph(L.Sequential(Uses(L.Parameter(np.ones(3)))), (1, 3)),
        "Parameter(float32[3]) belongs to no layer of Sequential; valid is one that a layer keeps "
        "as an attribute: self.g = Parameter(...) in __init__",
    ),
    (
        GraphError,
        lambda: md.Input((3,)) * L.Parameter(np.ones(3)),
        "Multiply: argument 1 is Parameter(float32[3]), which belongs to no layer; valid is one in "
        "forward of a layer that keeps it as an attribute",
    ),
    (
        GraphError,
        lambda: L.Parameter(np.ones(3)) * 2,
        "a parameter was computed with outside of forward",
    ),
]


@pytest.mark.parametrize(("kind", "wrong", "text"), WRONG, ids=[text[:50] for *_, text in WRONG])
def test_what_is_no_parameter(kind: type[Exception], wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        wrong()
