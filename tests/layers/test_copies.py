"""Networks are copied and pickled with their numbers, and what cannot be pickled is named."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn import layers as L
from minidnn import models, scalar
from minidnn.errors import GraphError, UnsupportedError
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from tests.sampling import mixed


def _pickled(protocol: int, value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    **{f"protocol {p}": partial(_pickled, p) for p in range(pickle.HIGHEST_PROTOCOL + 1)},
}


class Block(L.Layer):
    """With a shared layer, parameters of its own, one of them shared, and other attributes."""

    def __init__(self, channels: int) -> None:
        self.conv = L.Conv2d(channels, channels, 3, padding=1)
        self.again = self.conv
        self.norm = L.BatchNorm2d(channels, affine=False)
        self.scale = L.Parameter(
            (channels,), lambda random, shape: random.random(shape, np.float32)
        )
        self.tied = self.scale
        self.sizes = [(1, 2), {"a": 3}]
        self.act = L.PReLU()

    def forward(self, x: Any) -> Any:
        return self.act(self.norm(self.again(self.conv(x)))) + x


def functional() -> L.Model:
    a, b = L.Input((4, 6, 5), name="a"), L.Input((4, 6, 5), name="b")
    shared = L.Conv2d(4, 4, 1)
    joined = shared(a) * 2 + L.ReLU()(shared(b) - a)
    own = L.Elementwise(lambda x, s: scalar.where(x > s, x, s * x), s=np.full(4, 0.5))
    return L.Model({"a": a, "b": b}, {"sum": own(joined), "other": joined})


def long_chain() -> L.Model:
    """Longer than Python would follow one symbol after the other."""
    x = y = L.Input((2, 3, 3))
    for _ in range(1500):
        y = y + x
    return L.Model(x, y)


NETWORKS: dict[str, tuple[Callable[[], L.Layer], Any]] = {
    "block": (lambda: L.Sequential(Block(4), Block(4)), (1, 4, 6, 5)),
    "functional": (functional, [(1, 4, 6, 5)] * 2),
    "long chain": (long_chain, (1, 2, 3, 3)),
    "squeezenet1_1": (models.squeezenet1_1, (1, 3, 33, 35)),
    "densenet121": (models.densenet121, (1, 3, 33, 35)),
    "inception_v3": (lambda: models.inception_v3(transform_input=True), (1, 3, 75, 75)),
}


def numbers(layer: L.Layer) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in layer.state_dict().items()}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "copied"),
    mixed(2, ["block", "functional", "long chain", "squeezenet1_1"], COPIES),
)
def test_a_copy_computes_the_same_and_is_independent(name: str, copied: str) -> None:
    make, shapes = NETWORKS[name]
    net = make().initialize(3)
    twin = COPIES[copied](net)
    graphs = [to_graph(each, shapes) for each in (net, twin)]
    assert str(graphs[0]) == str(graphs[1]) and repr(net) == repr(twin)
    random = np.random.default_rng(0)
    x = [random.standard_normal(v.shape).astype(np.float32) for v in graphs[0].inputs]
    for one, two in zip(*(evaluate(graph, x) for graph in graphs), strict=True):
        np.testing.assert_array_equal(one, two)
    before = numbers(net)
    for array in twin.state_dict().values():
        array[...] = 7
    assert numbers(net) == before
    twin.initialize(4)
    if name != "block" or copied == "deepcopy":  # its lambdas are not in a pickle
        assert numbers(twin) == numbers(make().initialize(4))


@pytest.mark.parametrize("name", ["densenet121", "inception_v3"])
def test_networks_of_the_zoo(name: str) -> None:
    """Without their numbers, which are drawn when they are needed; the same ones."""
    net = NETWORKS[name][0]()
    data = pickle.dumps(net)
    assert len(data) < 1_000_000
    twins = [copy.deepcopy(net), pickle.loads(data)]
    *_, (path, last), _ = net.named_parameters()
    for twin in twins:
        found = dict(twin.named_parameters())[path]
        np.testing.assert_array_equal(found.bind("another")(), last.bind(path)())


def test_parts_that_were_shared_stay_shared() -> None:
    for copied in COPIES.values():
        net = copied(L.Sequential(Block(4)))
        block: Any = net[0]
        assert block.conv is block.again and block.tied is block.scale
        assert block.sizes == [(1, 2), {"a": 3}]


def test_a_copy_of_a_part_has_its_numbers() -> None:
    net = L.Sequential(L.Linear(3, 3), L.Linear(3, 3))
    for copied in COPIES.values():
        assert numbers(copied(net[1])) == numbers(net[1])
    fresh = L.Linear(3, 3)
    pair = [copy.deepcopy(fresh) for _ in range(2)]
    assert numbers(L.Sequential(*pair)) == numbers(L.Sequential(fresh, fresh))


def test_a_shallow_copy_shares_parameters_and_layers() -> None:
    for net in (Block(4), functional()):
        twin = copy.copy(net)
        assert twin is not net
        assert [p for _, p in twin.named_parameters()] == [p for _, p in net.named_parameters()]


def test_every_layer_can_be_pickled() -> None:
    kinds = [kind for kind in vars(L).values() if isinstance(kind, type)]
    made: list[Any] = []
    for kind in kinds:
        if issubclass(kind, L.Layer):
            for arguments in ((), (4,), (4, 4), (4, 4, 2), (lambda x: x * 2,), (2, 4)):
                try:
                    made.append(kind(*arguments))
                except (TypeError, GraphError):
                    continue
                break
    assert len(made) >= 25
    for layer in made:
        assert repr(_pickled(4, layer)) == repr(layer)
        assert numbers(_pickled(4, layer)) == numbers(layer)


def test_what_cannot_be_pickled_is_named() -> None:
    class Local(L.Layer):
        pass

    layer = Block(4)
    layer.extra = lambda x: x  # type: ignore[attr-defined]
    module: Any = L.ReLU()
    module.numpy = np
    for net, text in (
        (L.Sequential(Local()), r"Local cannot be pickled, as pickle looks for the class '.*<loc"),
        (L.Sequential(layer), r"Block\.extra = <function .*lambda.* cannot be pickled; valid is a"),
        (module, r"ReLU\.numpy = <module 'numpy'"),
    ):
        for protocol in (2, pickle.HIGHEST_PROTOCOL):
            with pytest.raises(UnsupportedError, match=text) as caught:
                pickle.dumps(net, protocol)
        assert "minidnn.save_graph(network, path, shape)" in str(caught.value)
        for copied in (copy.copy, copy.deepcopy)[: 1 + (net is not module)]:
            assert repr(copied(net)) == repr(net)


def test_numbers_whose_initializer_cannot_be_pickled_are_kept() -> None:
    block = Block(4).initialize(5)
    twin = _pickled(4, block)
    assert numbers(twin) == numbers(block)
    twin.initialize(1)
    text = (
        r"a parameter of shape \(4,\) cannot be drawn anew: it was unpickled, and its initializer"
    )
    with pytest.raises(GraphError, match=text):
        twin.state_dict()


def test_pickles_are_read_in_another_process(root: Path, tmp_path: Path) -> None:
    net = L.Sequential(Block(4), models.squeezenet1_1(num_classes=2)).initialize(2)
    (tmp_path / "net.pickle").write_bytes(pickle.dumps(net))
    code = (
        "import pickle, sys, numpy as np\n"
        "net = pickle.load(open(sys.argv[1], 'rb'))\n"
        "np.savez(sys.argv[2], **net.state_dict())\n"
    )
    arguments = [str(tmp_path / "net.pickle"), str(tmp_path / "out.npz")]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, cwd=root, env=environment)
    with np.load(tmp_path / "out.npz") as found:
        for name, array in net.state_dict().items():
            np.testing.assert_array_equal(found[name], array)
