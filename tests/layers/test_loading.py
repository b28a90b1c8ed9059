"""State dicts that do not fit: what is missing, what would fit, what is left out by name."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.errors import MiniDNNWarning, WeightsError


def network(classes: int = 4) -> L.Sequential:
    return L.Sequential(
        {
            "stem": L.Sequential(L.Conv2d(3, 5, 3), L.BatchNorm2d(5)),
            "flat": L.Flatten(),
            "head": L.Linear(5, classes),
        }
    )


def theirs(classes: int = 4) -> torch.nn.Module:
    nn = torch.nn
    module = nn.Sequential()
    module.add_module("stem", nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)))
    module.add_module("flat", nn.Flatten())
    module.add_module("head", nn.Linear(5, classes))
    return module


def state(seed: int = 1) -> dict[str, Any]:
    return dict(network().initialize(seed).state_dict())


def same(net: L.Layer, expected: dict[str, Any]) -> None:
    assert {n: a.tobytes() for n, a in net.state_dict().items()} == {
        n: a.tobytes() for n, a in expected.items()
    }


def renamed(prefix: str) -> dict[str, Any]:
    return {prefix + name: array for name, array in state().items()}


@pytest.mark.parametrize("drop", [[], ["head.bias"], ["stem.0.weight", "stem.1.running_mean"]])
@pytest.mark.parametrize("more", [[], ["fc.weight", "stem.2.bias"]])
def test_what_is_missing_and_unexpected_is_what_pytorch_says(
    drop: list[str], more: list[str]
) -> None:
    given = {name: array for name, array in state().items() if name not in drop}
    given |= {name: np.zeros(2, np.float32) for name in more}
    tensors = {name: torch.tensor(array) for name, array in given.items()}
    expected = theirs().load_state_dict(tensors, strict=False)
    found = network().load_state_dict(given, strict=False)
    assert found.missing_keys == list(expected.missing_keys) == drop
    assert found.unexpected_keys == list(expected.unexpected_keys) == more
    assert found == (drop, more)
    if not drop and not more:
        assert network().load_state_dict(given) == ([], [])


@pytest.mark.parametrize(
    "prefix",
    ["module.", "model.", "_orig_mod.", "net.", "backbone.", "ema.", "module._orig_mod.", "a.b.c."],
)
@pytest.mark.parametrize("strict", [True, False])
def test_prefixes_are_told_and_taken(prefix: str, strict: bool) -> None:
    given = renamed(prefix)
    advice = rf"9 of 9 parameters fit: load_state_dict\(state, prefix={re.escape(repr(prefix))}\)"
    net = network().initialize(5)
    before = dict(net.state_dict())
    if strict:
        with pytest.raises(WeightsError, match=advice) as caught:
            net.load_state_dict(given)
        text = str(caught.value)
    else:
        with pytest.warns(MiniDNNWarning, match=advice) as warned:
            found = net.load_state_dict(given, strict=False)
        assert len(found.missing_keys) == 8 and len(found.unexpected_keys) == 9
        assert warned[0].filename == __file__
        text = str(warned[0].message)
        assert "nothing of the state dict fits Sequential, so that none of its parameters" in text
        assert (
            "(missing: stem.0.weight, stem.0.bias, stem.1.weight, stem.1.bias and 4 more; " in text
        )
    assert ("DataParallel" in text) == ("module." in prefix)
    assert ("torch.compile" in text) == ("_orig_mod" in prefix)
    assert "within the names" not in text
    same(net, before)
    for spelling in (prefix, prefix.rstrip(".")):
        net = network()
        assert net.load_state_dict(given, strict, prefix=spelling) == ([], [])
        same(net, state())


def test_entries_without_the_prefix_are_not_looked_at() -> None:
    given = renamed("ema.") | {"model.x": np.ones(1), "epoch": 3, "emaciated": np.ones(1)}
    net = network()
    net.load_state_dict(given, prefix="ema")
    same(net, state())
    with pytest.raises(WeightsError, match=r"\n  missing: head.bias"):
        net.load_state_dict({n: a for n, a in given.items() if n != "ema.head.bias"}, prefix="ema.")
    with pytest.raises(WeightsError, match=r"^prefix='emma\.': no entry .* begins so; the first "):
        net.load_state_dict(given, prefix="emma.", strict=False)
    with pytest.raises(WeightsError, match=r"prefix=5; valid is a text, such as 'module\.'"):
        net.load_state_dict(given, prefix=5)  # type: ignore[arg-type]


def test_two_that_fit_are_both_told() -> None:
    both = renamed("model.") | {f"model_ema.module.{n}": a for n, a in state(2).items()}
    with pytest.raises(WeightsError) as caught:
        network().load_state_dict(both)
    assert "load_state_dict(state, prefix='model.')" in str(caught.value)
    assert "load_state_dict(state, prefix='model_ema.module.')" in str(caught.value)


def test_dicts_in_dicts_are_told() -> None:
    checkpoint = {"epoch": 3, "args": object(), "model": {"ema": renamed("module."), "x": {}}}
    text = (
        "9 of 9 parameters fit: entry ['model']['ema'] is a dict; "
        "load_state_dict(state['model']['ema'], prefix='module.')"
    )
    with pytest.raises(WeightsError, match=re.escape(text)):
        network().load_state_dict(checkpoint)
    with pytest.warns(MiniDNNWarning, match=re.escape(text)):
        network().load_state_dict(checkpoint, strict=False)
    with pytest.raises(
        WeightsError, match=r"entry \['state_dict'\] is a dict; load_state_dict\(st"
    ):
        network().load_state_dict({"state_dict": state()})


def test_wrappers_within_names_are_told() -> None:
    given = {
        name.replace("stem.", "stem.module.").replace("head.", "head._orig_mod."): array
        for name, array in state().items()
    } | {"submodule.x": np.ones(1)}
    with pytest.raises(WeightsError) as caught:
        network().load_state_dict(given)
    (line,) = [line for line in str(caught.value).splitlines() if "parameters fit" in line]
    assert "9 of 9 parameters fit: without 'module.' and '_orig_mod.' within the names, {" in line
    assert "(names of torch.nn.DataParallel and others and of torch.compile)" in line
    code = line.partition("names, ")[2].partition("...}")[0] + "state.items()}"
    net = network()
    fixed = eval(code, {"state": given})
    net.load_state_dict(fixed, strict=False)
    same(net, state())


def test_state_dicts_of_a_part_are_told() -> None:
    whole = L.Sequential({"scale": L.Conv2d(3, 3, 1), "body": network()})
    with pytest.raises(
        WeightsError, match="9 of 11 parameters fit: load_state_dict of the layer 'b"
    ):
        whole.load_state_dict(state())
    with pytest.warns(MiniDNNWarning, match="of the layer 'body', whose state dict it seems to be"):
        whole.load_state_dict(state(), strict=False)


def test_no_advice_where_none_helps() -> None:
    given = {**state(), "module.other": np.ones(1), "extra": {"head.bias": np.ones(4)}}
    with pytest.raises(WeightsError) as caught:
        network().load_state_dict(given)
    assert "parameters fit" not in str(caught.value)
    assert "without=" not in str(caught.value)


def test_something_that_fits_is_no_reason_to_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network().load_state_dict({"head.bias": np.ones(4)}, strict=False)
        L.Sequential(L.ReLU()).load_state_dict({}, strict=False)
    for empty in ({}, {"x": np.ones(3)}):
        with pytest.warns(MiniDNNWarning, match="nothing of the state dict fits Sequential, so"):
            network().load_state_dict(empty, strict=False)


# Heads of another size


@pytest.mark.parametrize("without", ["head", ["head"], ("head.weight", "head.bias")])
@pytest.mark.parametrize("strict", [True, False])
def test_a_head_of_another_size_is_left_out_by_name(without: Any, strict: bool) -> None:
    net = network(7).initialize(3)
    head = {name: array for name, array in net.state_dict().items() if "head" in name}
    assert net.load_state_dict(state(), strict, without=without) == ([], [])
    same(net, {**state(), **head})


def test_the_error_says_what_to_leave_out() -> None:
    net = network(7)
    for strict in (True, False):
        with pytest.raises(WeightsError) as caught:
            net.load_state_dict(state(), strict)
        assert str(caught.value).splitlines()[1] == (
            "  without=['head'] leaves out what has another shape, which stays as it is"
        )
    wider = {**state(), "stem.1.bias": np.zeros(6, np.float32)}
    with pytest.raises(WeightsError, match=r"without=\['head', 'stem\.1'\] leaves out"):
        net.load_state_dict(wider, without="head")
    net.load_state_dict(wider, without=["head", "stem.1"])


def test_names_to_leave_out_must_be_there() -> None:
    text = r"^without='hed': neither the network nor the state dict has .*; near are 'head'"
    with pytest.raises(WeightsError, match=text):
        network().load_state_dict(state(), without=["head", "hed"])
    parts: list[Any] = ["hea", "", 5]
    for part in parts:
        with pytest.raises(WeightsError, match="neither the network nor the state dict has"):
            network().load_state_dict(state(), without=[part])
    extra = {**state(), "aux.weight": np.ones(2)}
    assert network().load_state_dict(extra, without="aux") == ([], [])
    assert network().load_state_dict(
        {n: a for n, a in state().items() if "head" not in n}, without="head"
    ) == ([], [])


def test_a_shared_layer_is_left_out_by_any_name() -> None:
    twice = L.Linear(2, 2)
    net = L.Sequential(twice, L.ReLU(), twice, L.Linear(2, 3)).initialize(1)
    given = {name: array + 1 for name, array in net.state_dict().items()}
    before = net.state_dict()["0.weight"]
    for part in ("0", "2"):
        assert net.load_state_dict(given, without=part) == ([], [])
        assert net.state_dict()["0.weight"] is before
    np.testing.assert_array_equal(net.state_dict()["3.bias"], given["3.bias"])


def test_with_a_prefix_names_to_leave_out_lack_it() -> None:
    net = network(2)
    net.load_state_dict(renamed("module."), prefix="module.", without="head")
    np.testing.assert_array_equal(net.state_dict()["stem.0.bias"], state()["stem.0.bias"])


def test_what_is_no_state_dict(tmp_path: Path) -> None:
    for given, text in (
        (theirs(), r"is a Sequential; valid is a dict of arrays, such as its state_dict\(\)$"),
        (
            tmp_path,
            r"is a \w*Path; valid is a dict of arrays, such as minidnn.load_weights\(path\) ",
        ),
    ):
        with pytest.raises(WeightsError, match=text):
            network().load_state_dict(given)  # type: ignore[arg-type]


def test_the_zoos_heads(tmp_path: Path) -> None:
    md.save_weights(md.models.squeezenet1_1().state_dict(), tmp_path / "w.safetensors")
    net = md.models.squeezenet1_1(num_classes=3)
    given = md.load_weights(tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"\n  without=\['classifier\.1'\] leaves out"):
        net.load_state_dict(given)
    net.load_state_dict(given, without="classifier")
    name = "features.0.weight"
    np.testing.assert_array_equal(net.state_dict()[name], given[name])
