"""What people call in PyTorch and Keras: it is harmless, or an error says what to write instead."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import _habits
from minidnn import layers as L

TRAINING = "md.Trainer(net, shape, loss, optimizer) trains a network"


@pytest.fixture
def net() -> md.Layer:
    return md.Sequential(L.Conv2d(2, 3, 3), L.ReLU())


@pytest.fixture
def exe(net: md.Layer) -> Any:
    return md.compile(net, (1, 2, 4, 4), device="reference")


@pytest.mark.parametrize("make", ["net", "exe"])
def test_evaluation_is_harmless_and_training_an_error(
    make: str, request: pytest.FixtureRequest
) -> None:
    owner: Any = request.getfixturevalue(make)
    assert owner.eval() is owner
    assert owner.train(False) is owner
    for call in (owner.train, lambda: owner.train(True), lambda: owner.train(mode=True)):
        with pytest.raises(md.UnsupportedError) as caught:
            call()
        assert str(caught.value).startswith(f"{type(owner).__name__}.train(): {TRAINING}")


CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda net: net.backward(), f"Sequential has no backward: {TRAINING}"),
    (lambda net: net.zero_grad(set_to_none=True), f"Sequential has no zero_grad: {TRAINING}"),
    (lambda net: net.fit(1, 2), f"has no fit: {TRAINING}"),
    (lambda net: net.requires_grad_(False), f"has no requires_grad_: {TRAINING}"),
    (
        lambda net: net.cuda(),
        "has no cuda: a network is on no device: md.compile(net, shape, dev",
    ),
    (lambda net: net.to("cuda:1"), "has no to: a network is on no device"),
    (lambda net: net.half(), "parameters keep their dtype: md.compile(net, shape, precision='floa"),
    (lambda net: list(net.parameters()), "net.named_parameters() gives names and parameters"),
    (lambda net: net.modules(), "net.named_layers() gives all layers, with their paths"),
    (lambda net: net[0].weight.grad, f"Parameter has no grad: {TRAINING}"),
    (lambda net: net[0].cuda(), "Conv2d has no cuda: "),
    (lambda net: md.nn, "minidnn has no nn: minidnn.layers has the layers"),  # type: ignore[attr-defined]
    (lambda net: md.no_grad(), "nothing is recorded for gradients"),  # type: ignore[attr-defined]
    (lambda net: md.grad, f"minidnn has no grad: {TRAINING}"),  # type: ignore[attr-defined]
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_other_names_are_told(call: Callable[[Any], Any], message: str, net: md.Layer) -> None:
    with pytest.raises(AttributeError) as caught:
        call(net)
    assert message in str(caught.value)
    assert isinstance(caught.value, md.MiniDNNError)


def test_executables_say_what_they_are(exe: Any) -> None:
    for name, advice in _habits.EXECUTABLE.items():
        with pytest.raises(md.UnsupportedError) as caught:
            getattr(exe, name)
        assert str(caught.value) == f"Executable has no {name}: {advice}"


def test_what_is_told_is_absent_and_what_is_advised_is_there(net: md.Layer, exe: Any) -> None:
    tables = [(net, _habits.LAYER), (exe, _habits.EXECUTABLE), (md, _habits.FACE)]
    tables.append((next(net.named_parameters())[1], _habits.PARAMETER))
    for owner, table in tables:
        assert not [name for name in table if hasattr(owner, name)], owner
        for advice in table.values():
            for start, within in (("net.", net), ("md.", md), ("layers.", L)):
                for part in advice.split(start)[1:]:
                    name = part.replace("(", " ").replace(",", " ").split()[0].strip(";:.")
                    assert hasattr(within, name), advice


def test_unknown_names_are_pythons_error(net: md.Layer, exe: Any) -> None:
    name = "nonsense"
    for owner in (net, exe):
        with pytest.raises(AttributeError) as caught:
            getattr(owner, name)
        assert not isinstance(caught.value, md.MiniDNNError)
        assert str(caught.value) == f"{type(owner).__name__!r} object has no attribute 'nonsense'"


def test_an_error_within_a_property_is_not_hidden() -> None:
    class Mine(md.Layer):
        @property
        def parameters(self) -> int:
            return self.forgotten  # type: ignore[attr-defined, no-any-return]

    with pytest.raises(AttributeError, match="'Mine' object has no attribute 'forgotten'"):
        _ = Mine().parameters


def test_copies_and_attributes_of_ones_own_work(net: md.Layer) -> None:
    class Mine(md.Layer):
        def __init__(self) -> None:
            self.cuda = L.Linear(2, 3)

        def forward(self, x: Any) -> Any:
            return self.cuda(x)

    mine = copy.deepcopy(Mine())
    y = md.compile(mine, (1, 2), device="reference")(np.zeros((1, 2), np.float32))
    np.testing.assert_array_equal(y, mine.state_dict()["cuda.bias"][None])
