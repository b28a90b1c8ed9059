"""What training keeps beside parameters never takes a parameter's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, MiniDNNWarning, WeightsError
from minidnn.weights.trained import renamed

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)


class Within(L.Layer):
    def __init__(self) -> None:
        self.fc = L.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.fc(x)


class Colliding(L.Layer):
    """A layer whose path is the name of another one behind a kind of state."""

    def __init__(self, kind: str) -> None:
        self.fc = L.Linear(3, 3)
        setattr(self, kind, Within())
        self.kind = kind

    def forward(self, x: Any) -> Any:
        return getattr(self, self.kind)(self.fc(x))


KINDS = ["mean", "square", "momentum", "average", "sum", "pending", "loss_scale", "random"]


@pytest.mark.parametrize("kind", KINDS)
def test_paths_that_collide_train_as_in_pytorch(kind: str) -> None:
    net = Colliding(kind)
    theirs = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)]
    state = {name: torch.tensor(array) for name, array in net.state_dict().items()}
    for layer, path in zip(theirs, ("fc", f"{kind}.fc"), strict=True):
        layer.load_state_dict({n: state[f"{path}.{n}"] for n in ("weight", "bias")})
    both = torch.nn.Sequential(*theirs)
    optimizer = torch.optim.Adam(both.parameters(), 0.1)
    ours = md.Trainer(net, (4, 3), md.losses.MSE(), md.optim.Adam(0.1), device="reference")
    for _ in range(3):
        ours.step(X, Y)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(both(torch.tensor(X)), torch.tensor(Y)).backward()
        optimizer.step()
    found = ours.state_dict()
    for layer, path in zip(theirs, ("fc", f"{kind}.fc"), strict=True):
        for name, expected in layer.state_dict().items():
            got = found[f"{path}.{name}"]
            np.testing.assert_allclose(got, expected.numpy(), rtol=2e-4, atol=1e-5)


class Named(L.Layer):
    def __init__(self, name: str) -> None:
        setattr(self, name, L.Linear(3, 3))
        self.name = name

    def forward(self, x: Any) -> Any:
        return getattr(self, self.name)(x)


def test_a_name_that_training_needs_is_refused() -> None:
    with pytest.raises(GraphError, match=r"has a parameter 'mean@fc.weight'; valid for training"):
        md.Trainer(Named("mean@fc"), (4, 3), md.losses.MSE(), md.optim.SGD(0.1))


def trained(**options: Any) -> md.Trainer:
    net = Colliding("head")
    ours = md.Trainer(
        net, (4, 3), md.losses.MSE(), md.optim.Adam(0.1), device="reference", **options
    )
    for _ in range(2):
        ours.step(X, Y)
    return ours


def test_weights_of_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    ours = trained()
    ours.save(path)
    found = md.load_weights(path)
    assert found.keys() == ours.state_dict().keys()
    for name, array in ours.state_dict().items():
        np.testing.assert_array_equal(found[name], array)
    with pytest.raises(
        WeightsError, match=r"key='average'; valid for .* are 'parameters' and None"
    ):
        md.load_weights(path, key="average")


def test_weights_of_a_checkpoint_with_averages(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    ours = trained(average=0.5)
    ours.save(path)
    with pytest.warns(MiniDNNWarning, match="has a moving average of 4 parameters, which is"):
        found = md.load_weights(path)
    averages, last = md.load_weights(path, key="average"), md.load_weights(path, key="parameters")
    for name, array in ours.state_dict().items():
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(averages[name], array)
        np.testing.assert_array_equal(last[name], ours.store[name])
        assert not np.array_equal(last[name], array)


def test_names_of_the_format_before() -> None:
    old = {"fc.w": 1, "mean.fc.w": 2, "fc.running_mean": 3, "loss_scale": 4, "random.seed": 5}
    assert renamed(old) == {
        **{"fc.w": 1, "mean@fc.w": 2, "fc.running_mean": 3, "loss_scale@": 4, "random.seed": 5}
    }
