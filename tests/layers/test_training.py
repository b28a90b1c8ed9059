"""Layers in graphs of training, beside PyTorch's in their training mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.graph.philox import philox
from minidnn.layers.build import to_graph

SHAPES = {"BatchNorm1d": (5, 3), "BatchNorm2d": (4, 3, 5, 6), "InstanceNorm2d": (4, 3, 5, 6)}


def train(net: L.Layer, batches: list[np.ndarray]) -> tuple[list[np.ndarray], md.Store]:
    """What the graph of training gives for batches, in float64, and what it leaves."""
    store = md.Store()
    graph = to_graph(net, batches[0].shape, mode="train")
    exe = md.compile(graph, device="reference", precision="float64", store=store)
    return [exe(x) for x in batches], store


def like_torch(kind: str, shape: tuple[int, ...], *args: Any, **options: Any) -> None:
    net, theirs = getattr(L, kind)(*args, **options), getattr(torch.nn, kind)(*args, **options)
    theirs = theirs.double().train()
    random = np.random.default_rng(3)
    batches = [random.standard_normal(shape) * 3 + 7 for _ in range(3)]
    found, store = train(net, batches)
    for x, y in zip(batches, found, strict=True):
        expected = theirs(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(y, expected, rtol=1e-11, atol=1e-11)
    for name, array in theirs.state_dict().items():
        if name in store:
            np.testing.assert_allclose(store[name], array.numpy(), rtol=1e-12)
        else:
            assert kind == "InstanceNorm2d", name  # it does not count batches, in PyTorch either


@pytest.mark.parametrize("options", [{}, {"momentum": 0.3}, {"momentum": None}, {"affine": False}])
@pytest.mark.parametrize("kind", ["BatchNorm1d", "BatchNorm2d"])
def test_batch_norm(kind: str, options: dict[str, Any]) -> None:
    like_torch(kind, SHAPES[kind], 3, **options)


def test_batch_norm_of_rows() -> None:
    like_torch("BatchNorm1d", (2, 3, 7), 3)


@pytest.mark.parametrize("momentum", [0.1, 0.5])
def test_instance_norm(momentum: float) -> None:
    options = {"momentum": momentum, "track_running_stats": True, "affine": True}
    like_torch("InstanceNorm2d", SHAPES["InstanceNorm2d"], 3, **options)


def test_large_means_leave_the_variance() -> None:
    x = np.random.default_rng(0).standard_normal((64, 2, 8, 8)) + 3e3
    store = md.Store()
    graph = to_graph(L.BatchNorm2d(2, momentum=1.0), x.shape, mode="train")
    y = md.compile(graph, device="reference", store=store)(x.astype(np.float32))
    np.testing.assert_allclose(store["running_var"], x.var((0, 2, 3), ddof=1), rtol=1e-3)
    assert abs(y.std() - 1) < 1e-3


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_go_through_statistics(frozen: bool) -> None:
    norm = L.BatchNorm2d(3).freeze(frozen)
    net = md.Sequential(norm, L.Sigmoid(), L.Flatten(0), L.Linear(3 * 4 * 5 * 2, 1))
    graph = to_graph(net, (2, 3, 4, 5), mode="train")
    graph = md.gradient(graph, graph.outputs[0], of=["input", "0.weight", "0.bias"])
    x = np.random.default_rng(3).standard_normal((2, 3, 4, 5)) * 2 + 5
    options = {"precision": "float64", "store": md.Store()}
    found = md.compile(graph, device="reference", **options)(x)[1:]  # type: ignore[call-overload]
    theirs = torch.nn.BatchNorm2d(3).double().train(not frozen)
    given = torch.from_numpy(x).requires_grad_()
    weight = torch.from_numpy(net.state_dict()["3.weight"]).double()
    loss = (theirs(given).sigmoid().flatten() * weight[0]).sum()
    expected = torch.autograd.grad(loss, [given, *theirs.parameters()])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-9, atol=1e-12)


def test_a_layer_that_is_called_twice_updates_twice() -> None:
    class Twice(L.Layer):
        def __init__(self) -> None:
            self.norm = L.BatchNorm1d(2)

        def forward(self, x: Any, y: Any) -> Any:
            return self.norm(x) + self.norm(y)

    x, y = np.random.default_rng(0).standard_normal((2, 6, 2))
    store = md.Store()
    graph = to_graph(Twice(), [(6, 2), (6, 2)], mode="train")
    md.compile(graph, device="reference", precision="float64", store=store)(x, y)
    theirs = torch.nn.BatchNorm1d(2).double()
    for each in (x, y):
        theirs(torch.from_numpy(each))
    np.testing.assert_allclose(store["norm.running_mean"], theirs.running_mean, rtol=1e-12)  # type: ignore[arg-type]
    assert store["norm.num_batches_tracked"] == 2


def test_one_value_for_each_channel_is_an_error_that_names_the_layer() -> None:
    net = md.Sequential(L.Linear(3, 2), L.BatchNorm1d(2))
    with pytest.raises(GraphError, match=r"node '1': BatchNorm1d: input has shape \(1, 2\), which"):
        to_graph(net, (1, 3), mode="train")
    to_graph(net, (1, 3))
    net.freeze()
    to_graph(net, (1, 3), mode="train")


def test_a_frozen_normalization_uses_what_it_stores() -> None:
    net = md.Sequential(L.BatchNorm2d(3), L.BatchNorm2d(3))
    net[0].freeze()
    graph = to_graph(net, (2, 3, 4, 4), mode="train")
    assert {state.name.partition(".")[0] for state in graph.updates} == {"1"}
    assert [name for name, _ in net.trainable_parameters()] == ["1.weight", "1.bias"]
    dict(net.named_parameters())["1.weight"].trainable = False
    assert [name for name, _ in net.trainable_parameters()] == ["1.bias"]
    net.freeze(False)
    assert len(list(net.trainable_parameters())) == 3


@pytest.mark.parametrize("mode", [True, "training", None])
def test_other_modes_are_an_error(mode: Any) -> None:
    with pytest.raises(GraphError, match="valid are 'eval' and 'train'"):
        to_graph(L.ReLU(), (1, 2), mode=mode)


def test_philox_gives_the_numbers_of_its_authors() -> None:
    """Known answers of Random123's kat_vectors."""
    ones, pi = (0xFFFFFFFF,) * 4, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    for counter, key, answer in (
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (ones, (0xFFFFFFFF, 0xFFFFFFFF), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (pi, (0xA4093822, 0x299F31D0), "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ):
        found = philox([np.asarray(word) for word in counter], key)
        assert " ".join(f"{int(word):08x}" for word in found) == answer


@pytest.mark.parametrize(("layer", "whole"), [(L.Dropout(0.3), False), (L.Dropout2d(0.3), True)])
def test_dropout(layer: L.Layer, whole: bool) -> None:
    x = np.ones((8, 16, 4, 5))
    net = md.Sequential(layer, layer)
    (first, second), store = train(net, [x, x])
    assert set(np.unique(first)) <= {0.0, 1 / 0.7, 1 / 0.49}
    assert abs((first == 0).mean() - (1 - 0.49)) < 0.1
    assert not np.array_equal(first, second), "every run draws others"
    if whole:
        assert (first == first[:, :, :1, :1]).all()
    assert store["random.step"] == 2
    again, _ = train(net, [x])
    np.testing.assert_array_equal(again[0], first)
    np.testing.assert_array_equal(md.compile(net, x.shape, device="reference")(x), x)


def test_the_gradient_of_dropout_drops_the_same() -> None:
    net = md.Sequential(L.Dropout(0.5), L.Dropout(0.25), L.Elementwise(lambda x: 2.0 * x))
    graph = to_graph(md.Sequential(net, L.Flatten(0), L.Linear(60, 1)), (3, 20), mode="train")
    graph = md.gradient(graph, graph.outputs[0], of=[graph.inputs[0], "0.2"])
    _, by_input, by_last = md.compile(graph, device="reference")(np.ones((3, 20), np.float32))
    dropped = by_input == 0
    assert 0.3 < dropped.mean() < 0.9
    ratio = by_input[~dropped] / by_last[~dropped]
    np.testing.assert_allclose(ratio, 2 / 0.5 / 0.75, rtol=1e-6)


def test_attention_drops_weights() -> None:
    layer = L.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
    graph = to_graph(layer, [(2, 5, 4)] * 3, mode="train")
    x = np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)
    _, weights = md.compile(graph, device="reference", store=md.Store())(x, x, x)
    assert not np.allclose(weights.sum(-1), 1)
