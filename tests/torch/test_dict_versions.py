"""Every write to a dict is told by its version, as CPython makes it; else versions are not used."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from minidnn.acceleration import dict_versions
from minidnn.acceleration.dict_versions import are_known, places, version_of, versions
from minidnn.backends.cpu.backend import CpuBackend


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    if (reason := CpuBackend().unavailable()) is not None:
        pytest.skip(reason)
    are_known.cache_clear()
    yield
    are_known.cache_clear()


def test_where_versions_are_known() -> None:
    cpython = sys.implementation.name == "cpython"
    assert are_known() is (cpython and sys.version_info[:2] in ((3, 11), (3, 12)))


known = pytest.mark.skipif(not are_known(), reason="a Python without versions of dicts")


class Owner:
    """Its attributes are set as Python sets them."""

    value: Any


class Module(nn.Module):
    """Its attributes are set as PyTorch sets them."""

    value: Any


def _set(owner: Any) -> None:
    owner.value = object()


def _replace(owner: Any) -> None:
    vars(owner)["value"] = object()


def _set_often(owner: Any) -> None:
    """With instructions that CPython has made faster by now."""
    for number in range(1000):
        before = version_of(vars(owner))
        owner.value = -1000 - number
        assert version_of(vars(owner)) != before


def _call_c(owner: Any) -> None:
    write = ctypes.pythonapi.PyDict_SetItemString
    write.argtypes = [ctypes.py_object, ctypes.c_char_p, ctypes.py_object]
    write(vars(owner), b"value", object())


WRITES: dict[str, Callable[[Any], Any]] = {
    "set": _set,
    "set often": _set_often,
    "object.__setattr__": lambda owner: object.__setattr__(owner, "value", 2.0),
    "another type": lambda owner: setattr(owner, "value", True),
    "added": lambda owner: setattr(owner, "other", 1),
    "deleted": lambda owner: delattr(owner, "value"),
    "item": _replace,
    "item deleted": lambda owner: vars(owner).__delitem__("value"),
    "update": lambda owner: vars(owner).update(value=2.0),
    "|=": lambda owner: vars(owner).__ior__({"value": 2.0}),
    "setdefault": lambda owner: vars(owner).setdefault("other", 1),
    "pop": lambda owner: vars(owner).pop("value"),
    "popitem": lambda owner: vars(owner).popitem(),
    "clear": lambda owner: vars(owner).clear(),
    "a key of another type": lambda owner: vars(owner).__setitem__(1, 2),
    "by C": _call_c,
}


@known
@pytest.mark.parametrize("kind", [Owner, Module])
@pytest.mark.parametrize("shared", [True, False], ids=["shared names", "its own"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_each_write_is_told(write: Callable[[Any], Any], shared: bool, kind: type[Any]) -> None:
    owner, untouched = kind(), kind()
    owner.value = 1.0
    if not shared:
        owner.__dict__ = dict(vars(owner))
    at = places([vars(untouched), vars(owner)])
    before = list(versions(at))
    assert owner.value == 1.0 and vars(owner)["value"] == 1.0
    assert list(versions(at)) == before == [version_of(vars(untouched)), version_of(vars(owner))]
    write(owner)
    now = list(versions(at))
    assert now[0] == before[0] and now[1] != before[1]


@known
def test_what_pytorch_writes_is_told() -> None:
    module = nn.BatchNorm2d(3)
    for of, write in (
        (module._parameters, lambda: setattr(module, "weight", nn.Parameter(torch.ones(3)))),
        (module._buffers, lambda: setattr(module, "running_var", torch.ones(3))),
        (module._modules, lambda: module.add_module("inner", nn.ReLU())),
        (vars(module), module.eval),
    ):
        before = version_of(of)
        write()
        assert version_of(of) != before


@known
@pytest.mark.parametrize("why", ["another Python", "a later one", "no lock", "not every write"])
def test_what_is_not_certain_is_not_used(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "another Python":
        monkeypatch.setattr(sys.implementation, "name", "pypy")
    elif why == "a later one":
        monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    elif why == "no lock":
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    else:
        # The count of entries instead, which tells some writes.
        monkeypatch.setattr(dict_versions, "_OFFSET", dict_versions._OFFSET - 8)
    assert not are_known()
