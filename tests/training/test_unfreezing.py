"""Layers that are frozen and unfrozen within a run, beside PyTorch; parameters alone restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, MiniDNNWarning, WeightsError

random = np.random.default_rng(0)
X = random.standard_normal((6, 4)).astype(np.float32)
T = random.integers(0, 3, 6)
BATCHES = [(X, T)] * 3


class Net(L.Layer):
    def __init__(self, classes: int = 3) -> None:
        self.body, self.norm = L.Linear(4, 4), L.BatchNorm1d(4)
        self.head = L.Linear(4, classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(self.norm(x)))


def trainer(net: L.Layer, optimizer: Any = None, **options: Any) -> md.Trainer:
    optimizer = optimizer or md.optim.Adam(md.optim.StepDecay(0.05, every=2, factor=0.5))
    return md.Trainer(
        net, (6, 4), md.losses.CrossEntropy(), optimizer, device="reference", **options
    )


def frozen(net: Net) -> Net:
    net.freeze()
    net.head.freeze(False)
    return net


def eager(net: Net) -> torch.nn.Sequential:
    theirs = torch.nn.Sequential(
        torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)
    )
    names = {"norm": "0", "body": "1", "head": "2"}
    state = {names[n.split(".")[0]] + n[n.index(".") :]: a for n, a in net.state_dict().items()}
    theirs.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    return theirs


def test_unfreezing_is_as_in_pytorch() -> None:
    """Two steps of the head alone, three of all, two without the body; Adam's corrections count
    from the first step of each parameter."""
    net = frozen(Net())
    theirs = eager(net)
    norm, body, head = theirs
    optimizer = torch.optim.Adam(theirs.parameters(), 0.05)
    ours = trainer(net)
    for step in range(7):
        if step == 2:
            net.freeze(False)
        if step == 5:
            net.body.freeze()
        ours.step(X, T)
        for layer, trains in ((body, 2 <= step < 5), (norm, step >= 2), (head, True)):
            layer.train(trains).requires_grad_(trains)
        optimizer.param_groups[0]["lr"] = 0.05 * 0.5 ** (step // 2)
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(theirs(torch.tensor(X)), torch.tensor(T)).backward()
        optimizer.step()
    found = ours.state_dict()
    for name, layer in (("body", body), ("norm", norm), ("head", head)):
        for key, expected in layer.state_dict().items():
            got = found[f"{name}.{key}"]
            np.testing.assert_allclose(got, expected.numpy(), rtol=1e-3, atol=1e-5, err_msg=name)


def test_one_parameter_alone() -> None:
    net = Net()
    ours, bias = trainer(net), net.head.bias
    assert bias is not None
    bias.trainable = False
    before = ours.store["head.bias"].copy()
    ours.step(X, T)
    np.testing.assert_array_equal(ours.store["head.bias"], before)
    bias.trainable = True
    ours.step(X, T)
    assert not np.array_equal(ours.store["head.bias"], before)


class Unfreezes(md.callbacks.Callback):
    def begin(self, trainer: Any, epochs: int) -> None:
        trainer.network.freeze(trainer.progress.epoch < 1)
        trainer.network.head.freeze(False)

    def after_epoch(self, trainer: Any, record: dict[str, Any]) -> None:
        trainer.network.freeze(False)


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("average", [None, 0.9])
def test_it_resumes_with_the_same_bits(after: int, average: float | None, tmp_path: Path) -> None:
    """Also a network that is frozen when the checkpoint is read."""
    whole, first, second = (trainer(frozen(Net()), average=average) for _ in range(3))
    whole.fit(BATCHES, 4, callbacks=[Unfreezes()])
    first.fit(BATCHES, after, callbacks=[Unfreezes(), md.callbacks.Checkpoint(tmp_path / "run")])
    second.restore(tmp_path / "run")
    second.save(tmp_path / "again")
    third = trainer(frozen(Net()), average=average)
    third.restore(tmp_path / "again")
    for resumed in (second, third):
        resumed.fit(BATCHES, 4, callbacks=[Unfreezes()])
        assert resumed.history[-1]["loss"] == whole.history[-1]["loss"]
        for name in whole.store:
            np.testing.assert_array_equal(resumed.store[name], whole.store[name], err_msg=name)


def test_launches_of_several_steps_are_single_ones() -> None:
    one, other = trainer(frozen(Net())), trainer(frozen(Net()), steps_per_launch=2)
    for each in (one, other):
        each.fit(BATCHES, 3, callbacks=[Unfreezes()])
    assert [r["loss"] for r in one.history] == [r["loss"] for r in other.history]
    for name in one.store:
        np.testing.assert_array_equal(other.store[name], one.store[name], err_msg=name)


def test_a_checkpoint_of_frozen_layers_read_by_a_trainer_of_all(tmp_path: Path) -> None:
    ours = trainer(frozen(Net()))
    ours.fit(BATCHES, 1)
    ours.save(tmp_path / "run")
    other, net = trainer(Net()), ours.network
    other.step(X, T)
    other.restore(tmp_path / "run")
    net.freeze(False)
    for each in (ours, other):
        each.fit(BATCHES, 2)
    for name in ours.store:
        np.testing.assert_array_equal(other.store[name], ours.store[name], err_msg=name)


@pytest.mark.parametrize("average", [None, 0.5])
def test_parameters_alone(average: float | None, tmp_path: Path) -> None:
    path = tmp_path / "run"
    ours = trainer(Net(), average=average)
    ours.fit(BATCHES, 2)
    ours.save(path)
    other = trainer(Net(5), md.optim.SGD(0.1, momentum=0.9), average=average)
    head = other.state_dict()["head.weight"]

    def restore() -> None:
        other.restore(path, parameters_only=True, without="head")

    if average is None:
        restore()
    else:
        with pytest.warns(MiniDNNWarning, match="has a moving average"):
            restore()
    assert other.progress.steps == 0 and not other.history
    for name, array in other.state_dict().items():
        expected = head if name == "head.weight" else ours.state_dict()[name]
        if name != "head.bias":
            np.testing.assert_array_equal(array, expected)
    assert other.step(X, T) > 0
    with pytest.raises(WeightsError, match="without="):
        other.restore(path, parameters_only=True) if average is None else restore_error(other, path)
    with pytest.raises(GraphError, match="without='head'; valid is it with parameters_only=True"):
        other.restore(path, without="head")


def restore_error(ours: md.Trainer, path: Path) -> None:
    with pytest.warns(MiniDNNWarning):
        ours.restore(path, parameters_only=True)
