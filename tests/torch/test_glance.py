"""What a look before a call tells, and by what: versions of dicts, else their entries."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration import dict_versions, glance
from minidnn.acceleration.weights import Watch
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.errors import DeviceError
from minidnn.frontends.torch.capture import Held

pytestmark = pytest.mark.skipif(
    CpuBackend().unavailable() is not None, reason="the CPU engine is not there"
)
known = pytest.mark.skipif(
    not dict_versions.are_known(), reason="a Python without versions of dicts"
)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout(0.5)
        self.factor = 1.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.factor


def watch_of(net: nn.Module) -> Watch:
    held = [
        Held(module._parameters, key, key)
        for module in net.modules()
        for key, tensor in module._parameters.items()
        if tensor is not None
    ]
    return Watch(held, net, native=True)


def make() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 3, 1), Scaled(), nn.BatchNorm2d(3)).eval()


@known
def test_nothing_but_versions_is_looked_at_once_all_was(monkeypatch: pytest.MonkeyPatch) -> None:
    net: Any = make()
    watch = watch_of(net)
    assert watch.is_as_it_was()
    looked: list[bool] = []
    same = watch.attributes.are_the_same

    def counted() -> bool:
        looked.append(same())
        return looked[-1]

    monkeypatch.setattr(watch.attributes, "are_the_same", counted)
    assert watch.is_as_it_was() and looked == []
    # A write makes it look again, and once where it puts down an equal number.
    net[1].factor = float("1.5")
    assert watch.is_as_it_was() and looked == [True]
    assert watch.is_as_it_was() and looked == [True]


@pytest.mark.parametrize("by_versions", [pytest.param(True, marks=known), False])
def test_modes_are_told(by_versions: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dict_versions, "are_known", lambda: by_versions)
    net: Any = make()
    watch = watch_of(net)
    look = watch._glance.is_as_it_was
    assert look() and look() and (watch._glance._unwritten is not None) is by_versions
    net[0].training = True  # computes the same
    assert look()
    for module in (net[1].inner, net[1], net[2]):
        module.training = True
        assert not look() and watch.restructured() == "a module was replaced or changed mode"
        module.training = False
        assert look()


@known
@pytest.mark.parametrize("what", ["__dict__", "__class__"])
def test_modules_say_which_their_dict_and_class_are(what: str) -> None:
    net: Any = make()
    watch = watch_of(net)
    other = {"__dict__": dict(vars(net[1])), "__class__": type("Other", (Scaled,), {})}[what]
    before = getattr(net[1], what)
    assert watch.is_as_it_was() and watch._glance._unwritten is not None
    setattr(net[1], what, other)
    assert not watch._glance._unwritten() and not watch.is_as_it_was()
    setattr(net[1], what, before)
    assert watch.is_as_it_was()


@known
def test_modules_whose_dict_is_not_told_are_looked_into() -> None:
    class Raised(nn.Module, Exception):
        """Its dict lies where exceptions have it."""

        __hash__ = nn.Module.__hash__

    net = nn.Sequential(nn.Conv2d(3, 3, 1), Raised()).eval()
    assert not dict_versions.say_their_dict(net[1])
    watch = watch_of(net)
    assert watch.is_as_it_was() and watch.is_as_it_was() and watch._glance._unwritten is None
    net[1].other = 1
    assert not watch.is_as_it_was()


class Inverted(nn.ReLU):
    """Its mode is no entry of its dict."""

    is_training = False

    @property
    def training(self) -> bool:
        return self.is_training

    @training.setter
    def training(self, mode: bool) -> None:
        type(self).is_training = mode


def test_modes_that_are_no_attributes_are_asked_for() -> None:
    Inverted.is_training = False
    net = nn.Sequential(nn.Conv2d(3, 3, 1), Inverted()).eval()
    look = watch_of(net)._glance.is_as_it_was
    assert look() and look()
    Inverted.is_training = True
    assert not look()
    Inverted.is_training = False
    assert look()


def test_modes_of_optimized_modules_inside() -> None:
    inner = make()
    net = nn.Sequential(md.optimize(inner, device="reference"), nn.ReLU()).eval()
    look = watch_of(net)._glance.is_as_it_was
    assert look() and look()
    inner.train()
    assert not look()


def test_dicts_of_other_types_are_looked_into() -> None:
    for holder in (OrderedDict(weight=torch.ones(3)), type("Other", (dict,), {})()):
        holder["weight"] = torch.ones(3)
        watch = Watch([Held(holder, "weight", "weight")], native=True)
        assert watch.is_as_it_was() and watch.is_as_it_was()
        assert watch._glance._unwritten is None
        holder["weight"] = torch.ones(3)
        assert not watch.is_as_it_was()


@known
def test_a_write_while_entries_are_looked_at_is_seen_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net: Any = make()
    watch = watch_of(net)
    same = watch.attributes.are_the_same

    def meanwhile() -> bool:
        found = same()
        net[1].factor = 2.5
        return found

    monkeypatch.setattr(watch.attributes, "are_the_same", meanwhile)
    assert watch.is_as_it_was()
    monkeypatch.undo()
    assert not watch.is_as_it_was() and watch.changed() is None
    assert watch.restructured() == "attribute 1.factor changed"


def test_without_the_engines_c_entries_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> Any:
        raise AssertionError("the CPU engine is not there")

    for name in ("TensorWords", "unchanged", "fetcher"):
        monkeypatch.setattr(glance, name, forbidden)
    holder = {"weight": torch.ones(3)}
    watch = Watch([Held(holder, "weight", "weight")])
    assert watch.is_as_it_was() and watch.is_as_it_was()
    holder["weight"].mul_(2)
    assert not watch.is_as_it_was()


def test_devices_that_are_looked_at_with_the_engines_c(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    devices = ("cpu", "cuda", "cuda:1", "reference")
    assert list(map(glance.is_native, devices)) == [True, True, True, False]

    def missing() -> Any:
        raise DeviceError("no C compiler")

    monkeypatch.setattr(glance, "runner", missing)
    with caplog.at_level(logging.INFO, "minidnn.acceleration"):
        assert not glance.is_native("cuda")
    assert [each.getMessage() for each in caplog.records] == [
        "weights are looked at by Python before each call on a GPU: no C compiler"
    ]
