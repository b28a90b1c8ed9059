"""Parameters: their names, their numbers, loading them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from minidnn import layers as L
from minidnn.errors import GraphError, WeightsError
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph


class Block(L.Layer):
    """With parameters of its own, layers, a list and a Sequential with names."""

    def __init__(self) -> None:
        self.conv = L.Conv2d(3, 4, 3, bias=False)
        self.scale = L.Parameter((4,), lambda random, shape: np.ones(shape, np.float32))
        self.bn = L.BatchNorm2d(4)
        self.branches = L.LayerList(L.Conv2d(4, 4, 1), L.Identity(), L.Linear(4, 2))
        self.head = L.Sequential({"act": L.ReLU(), "fc": L.Linear(2, 3, bias=False)})


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.scale = nn.Parameter(torch.ones(4))
        self.bn = nn.BatchNorm2d(4)
        self.branches = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.Identity(), nn.Linear(4, 2)])
        head: dict[str, Any] = {"act": nn.ReLU(), "fc": nn.Linear(2, 3, bias=False)}
        self.head = nn.Sequential()
        for name, module in head.items():
            self.head.add_module(name, module)


def types(state: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    return {k: (tuple(v.shape), str(v.dtype).removeprefix("torch.")) for k, v in state.items()}


def test_names_shapes_and_dtypes_are_those_of_pytorch() -> None:
    theirs = TorchBlock()
    assert types(Block().state_dict()) == types(theirs.state_dict())
    # Its own parameters come first, then those of its layers in order of assignment.
    assert next(iter(Block().state_dict())) == next(iter(theirs.state_dict())) == "scale"


def test_states_go_both_ways() -> None:
    ours, theirs = Block(), TorchBlock()
    ours.load_state_dict(theirs.state_dict())
    for name, tensor in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[name], tensor.numpy())
    ours.initialize(7)
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in ours.state_dict().items()})


def test_tensors_that_numpy_cannot_view_are_loaded() -> None:
    """Parameters that require a gradient, and those of a dtype that NumPy lacks."""
    ours, theirs = L.Linear(3, 2), torch.nn.Linear(3, 2)
    for state in (dict(theirs.named_parameters()), theirs.bfloat16().state_dict()):
        ours.load_state_dict(state)
        for name, tensor in state.items():
            expected = tensor.detach().float().numpy()
            np.testing.assert_array_equal(ours.state_dict()[name], expected)


def test_a_loaded_array_is_copied_and_converted() -> None:
    layer = L.Linear(2, 1)
    weight = np.array([[1.0, 1e300]])
    layer.load_state_dict({"weight": weight, "bias": np.zeros(1, np.float16)})
    weight[:] = 5
    state = layer.state_dict()
    np.testing.assert_array_equal(state["weight"], np.array([[1, np.inf]], np.float32))
    assert state["weight"].dtype == state["bias"].dtype == np.float32


def test_a_missing_counter_is_no_mismatch() -> None:
    layer = L.BatchNorm2d(2)
    state = layer.state_dict()
    del state["num_batches_tracked"]
    layer.load_state_dict(state)


# Mismatches


def test_every_mismatch_is_reported_at_once() -> None:
    block = Block()
    state: dict[Any, Any] = dict(block.state_dict())
    del state["conv.weight"], state["head.fc.weight"], state["bn.num_batches_tracked"]
    state["bn.weight"] = np.zeros(5, np.float32)
    state["bn.bias"] = np.zeros(4, np.int64)
    state["branches.0.bias"] = np.zeros(4, np.complex64)
    state["branches.2.bias"] = [[1.0], [2.0, 3.0]]
    state["fc.weight"] = np.zeros((3, 2), np.float32)
    state[7] = np.zeros(1)
    with pytest.raises(WeightsError) as raised:
        block.load_state_dict(state)
    first, *lines = str(raised.value).splitlines()
    assert first == "the state dict does not fit Block (8 problems):"
    assert [line.strip().split(" (setting an array")[0] for line in lines] == [
        "missing: conv.weight float32[4, 3, 3, 3]",
        "wrong shape: bn.weight is (5,), valid is (4,)",
        "wrong dtype: bn.bias is int64, valid is a float dtype",
        "wrong dtype: branches.0.bias is complex64, valid is a float dtype",
        "not an array: branches.2.bias",
        "missing: head.fc.weight float32[3, 2]",
        "unexpected: fc.weight",
        "unexpected: 7",
    ]


def test_nothing_is_changed_unless_everything_fits() -> None:
    block = Block().initialize(1)
    before = {name: array.copy() for name, array in block.state_dict().items()}
    state = {name: array + 1 for name, array in before.items()}
    state["head.fc.weight"] = np.zeros((2, 3), np.float32)
    with pytest.raises(WeightsError, match=r"wrong shape: head.fc.weight is \(2, 3\)"):
        block.load_state_dict(state)
    for name, array in block.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_not_strict() -> None:
    layer = L.Linear(2, 1).initialize(1)
    bias = layer.state_dict()["bias"]
    layer.load_state_dict({"weight": np.zeros((1, 2)), "more": 1}, strict=False)
    np.testing.assert_array_equal(layer.state_dict()["weight"], np.zeros((1, 2)))
    np.testing.assert_array_equal(layer.state_dict()["bias"], bias)
    with pytest.raises(WeightsError, match="wrong shape"):
        layer.load_state_dict({"weight": np.zeros((2, 1))}, strict=False)


def test_ignored_prefixes() -> None:
    class Tolerant(L.Layer):
        ignored_prefixes = ("aux.",)

        def __init__(self) -> None:
            self.fc = L.Linear(1, 1)

    state = Tolerant().state_dict()
    Tolerant().load_state_dict({**state, "aux.weight": 1})
    nested = L.Sequential(Tolerant())
    nested_state = nested.state_dict()
    nested.load_state_dict({**nested_state, "0.aux.weight": 1})
    with pytest.raises(WeightsError, match=r"unexpected: aux\.weight"):
        nested.load_state_dict({**nested_state, "aux.weight": 1})


@pytest.mark.parametrize("state", [None, [("weight", 1)], "weights.pth"])
def test_a_state_that_is_no_dict(state: Any) -> None:
    with pytest.raises(WeightsError, match=r"^state=.* is a (\w+); valid is a dict of arrays"):
        L.Linear(1, 1).load_state_dict(state)


# Numbers


def numbers(layer: L.Layer) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in layer.state_dict().items()}


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert numbers(Block().initialize(3)) == numbers(Block().initialize(3))
    assert numbers(Block().initialize(0)) == numbers(Block())
    changed = numbers(Block().initialize(4))
    for name, array in numbers(Block().initialize(3)).items():
        drawn = "conv" in name or "branches" in name or "fc" in name
        assert (changed[name] != array) == drawn


def test_numbers_do_not_depend_on_the_order_of_anything() -> None:
    one = Block().initialize(5)
    other = Block()
    to_graph(L.Sequential(other.conv), (1, 3, 4, 4))
    numbers(other.branches)
    other.initialize(5)
    reverse = {name: p.bind(name)() for name, p in reversed(list(other.named_parameters()))}
    for name, array in one.state_dict().items():
        np.testing.assert_array_equal(reverse[name], array)
    # Another network with layers of the same names, among others.
    more = L.Sequential({"first": L.Conv2d(3, 3, 1), "conv": L.Conv2d(3, 4, 3, bias=False)})
    np.testing.assert_array_equal(
        more.initialize(5).state_dict()["conv.weight"], one.state_dict()["conv.weight"]
    )


def test_different_names_get_different_numbers() -> None:
    net = L.Sequential(*(L.Linear(8, 8) for _ in range(6))).initialize(0)
    arrays = list(numbers(net).values())
    assert len(set(arrays)) == len(arrays) == 12


def test_layers_of_a_functional_model_get_different_numbers() -> None:
    x = L.Input((4,))
    net = L.Model(x, L.Linear(4, 4)(L.Linear(4, 4)(x)))
    assert len(set(numbers(net).values())) == 4
    assert numbers(net) == numbers(net.initialize(0))


def test_initial_numbers_have_pytorchs_range() -> None:
    conv = L.Conv2d(64, 128, 3, groups=2).initialize(0)
    bound = (64 / 2 * 9) ** -0.5
    for array in conv.state_dict().values():
        assert array.dtype == np.float32
        assert np.abs(array).max() <= bound
        assert np.abs(array).max() > 0.95 * bound
        assert abs(array.mean()) < 0.1 * bound
        assert array.std() == pytest.approx(bound / 3**0.5, rel=0.1)


@pytest.mark.parametrize("seed", [-1, 1.5, None, True])
def test_a_seed_is_a_number(seed: Any) -> None:
    with pytest.raises(GraphError, match=rf"^seed={re.escape(repr(seed))}; valid is an int of at"):
        L.Linear(1, 1).initialize(seed)


def test_defining_a_network_draws_nothing() -> None:
    net = L.Sequential(L.Linear(10**6, 10**6), L.Linear(10**6, 10**6))
    assert to_graph(net, (1, 10**6)).outputs[0].shape == (1, 10**6)
    assert "float32[1000000, 1000000]" in repr(to_graph(net, (1, 10**6)).constants)


def test_a_graph_keeps_the_numbers_it_was_made_with() -> None:
    layer = L.Linear(1, 1, bias=False)
    layer.load_state_dict({"weight": np.array([[2.0]])})
    graph = to_graph(layer, (1, 1))
    layer.load_state_dict({"weight": np.array([[3.0]])})
    x = [np.ones((1, 1), np.float32)]
    assert evaluate(graph, x)[0] == 2
    assert evaluate(to_graph(layer, (1, 1)), x)[0] == 3


# Sharing


def shared_network() -> L.Sequential:
    twice = L.Linear(2, 2)
    return L.Sequential(twice, L.ReLU(), twice)


def test_a_shared_layer_has_pytorchs_names_and_one_constant() -> None:
    linear = torch.nn.Linear(2, 2)
    theirs = torch.nn.Sequential(linear, torch.nn.ReLU(), linear)
    ours = shared_network()
    assert types(ours.state_dict()) == types(theirs.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [
        name for name, _ in theirs.named_parameters()
    ]
    ours.load_state_dict(theirs.state_dict())
    graph = to_graph(ours, (1, 2))
    assert [constant.name for constant in graph.constants] == ["0.weight", "0.bias"]
    assert [node.name for node in graph.nodes] == ["0", "1", "0.1"]


def test_a_shared_layer_is_loaded_under_any_of_its_names() -> None:
    net = shared_network()
    state = {"2.weight": np.eye(2), "0.bias": np.ones(2)}
    net.load_state_dict(state)
    loaded = net.state_dict()
    assert loaded["0.weight"] is loaded["2.weight"]
    np.testing.assert_array_equal(loaded["0.weight"], np.eye(2))
    with pytest.raises(WeightsError, match=r"\n  missing: 0.weight float32\[2, 2\]$"):
        net.load_state_dict({"0.bias": np.ones(2)})


def test_a_shared_layer_with_two_different_values_is_an_error() -> None:
    state = {**shared_network().state_dict(), "2.bias": np.ones(2)}
    text = "contradiction: 0.bias and 2.bias are one shared parameter, but differ"
    with pytest.raises(WeightsError, match=re.escape(text)):
        shared_network().load_state_dict(state)


def test_a_shared_parameter() -> None:
    class Tied(L.Layer):
        def __init__(self) -> None:
            self.inner = L.Linear(3, 3, bias=False)
            self.outer = L.Linear(3, 3, bias=False)
            self.outer.weight = self.inner.weight

        def forward(self, x: Any) -> Any:
            return self.outer(self.inner(x))

    graph = to_graph(Tied(), (1, 3))
    assert [constant.name for constant in graph.constants] == ["inner.weight"]
    assert list(Tied().state_dict()) == ["inner.weight", "outer.weight"]
