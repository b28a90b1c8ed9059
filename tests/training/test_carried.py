"""ONNX files, graphs and PyTorch's modules train as what they were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, MiniDNNError, MiniDNNWarning

X = np.random.default_rng(0).standard_normal((6, 2, 5, 5)).astype(np.float32)
T = np.random.default_rng(1).integers(0, 3, 6)


class Eager(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.fc = nn.Linear(36, 3)

    def forward(self, x: Any) -> Any:
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


def eager() -> Eager:
    torch.manual_seed(0)
    made = Eager()
    nn.init.uniform_(made.norm.weight, 0.5, 1.5)
    nn.init.uniform_(made.norm.bias, -0.5, 0.5)
    return made


def own() -> L.Sequential:
    net = L.Sequential(L.Conv2d(2, 4, 3), L.BatchNorm2d(4), L.ReLU(), L.Flatten(), L.Linear(36, 3))
    names = {"conv": "0", "norm": "1", "fc": "4"}
    state = eager().state_dict()
    net.load_state_dict({names[n.split(".")[0]] + n[n.index(".") :]: a for n, a in state.items()})
    return net


def trainer(network: Any, shape: Any = (6, 2, 5, 5), **options: Any) -> md.Trainer:
    loss, optimizer = md.losses.CrossEntropy(), md.optim.SGD(0.1, momentum=0.9)
    return md.Trainer(network, shape, loss, optimizer, device="reference", **options)


def stepped(module: Eager) -> Eager:
    """After a step of 6 samples and one of 4, in PyTorch."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    module.train()
    for rows in (6, 4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(torch.tensor(X[:rows])), torch.tensor(T[:rows]))
        loss.backward()
        optimizer.step()
    return module.eval()


def made(kind: str, folder: Path) -> Any:
    if kind == "module":
        return eager()
    if kind == "graph":
        md.save_graph(own(), folder / "net.safetensors", (6, 2, 5, 5))
        return md.load_graph(folder / "net.safetensors")
    path = folder / "net.onnx"
    torch.onnx.export(
        eager().eval(),
        (torch.tensor(X),),
        path,
        dynamo=False,
        do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        input_names=["x"],
        dynamic_axes={"x": {0: "n"}},
    )
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["module", "onnx"])
def test_it_trains_as_pytorch(kind: str, tmp_path: Path) -> None:
    ours = trainer(made(kind, tmp_path))
    for rows in (6, 4):
        ours.step(X[:rows], T[:rows])
    theirs = stepped(eager())
    expected = theirs(torch.tensor(X)).detach().numpy()
    np.testing.assert_allclose(ours.predict(X), expected, rtol=1e-3, atol=1e-4)
    if kind == "module":
        names = {n for n, _ in theirs.named_parameters()}
        assert names <= set(ours.state_dict())
        for name in names:
            np.testing.assert_allclose(
                ours.state_dict()[name], theirs.state_dict()[name].numpy(), rtol=1e-3, atol=1e-5
            )
    net: Any = ours.network
    net.load_state_dict(ours.state_dict())
    md.save_onnx(net, tmp_path / "trained.onnx", (6, 2, 5, 5))
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    (again,) = session.run(None, {session.get_inputs()[0].name: X})
    np.testing.assert_allclose(again, expected, rtol=1e-3, atol=1e-4)


def test_what_a_graph_says_of_its_sizes(tmp_path: Path) -> None:
    ours = trainer(made("graph", tmp_path), None)
    before = ours.predict(X)
    np.testing.assert_allclose(before, md.compile(own(), X.shape, device="reference")(X), atol=1e-5)
    assert ours.step(X, T) > 0
    with pytest.raises(GraphError, match=r"4, 2, 5, 5"):
        ours.step(X[:4], T[:4])


def test_frozen_parameters_of_a_module_stay() -> None:
    module = eager()
    module.conv.requires_grad_(False)
    module.norm.requires_grad_(False)
    ours = trainer(module)
    ours.step(X, T)
    found = ours.state_dict()
    for name in ("conv.weight", "conv.bias", "norm.weight", "norm.bias"):
        expected = module.get_parameter(name).detach().numpy()
        np.testing.assert_array_equal(found[name], expected)
    assert not np.array_equal(found["fc.weight"], module.fc.weight.detach().numpy())


def test_each_part_of_a_module_stays_in_its_mode() -> None:
    """Whatever mode it is in, in training too, it is captured as it evaluates."""
    module = eager()
    module.norm.eval()
    with pytest.warns(MiniDNNWarning, match="these are in evaluation mode: norm"):
        ours = trainer(module)
    modes = {name: part.training for name, part in module.named_modules()}
    assert modes == {"": True, "conv": True, "norm": False, "fc": True}
    same = trainer(eager().eval())
    for rows in (6, 4):
        assert ours.step(X[:rows], T[:rows]) == same.step(X[:rows], T[:rows])
    assert module.training and not module.norm.training
    np.testing.assert_array_equal(ours.predict(X), same.predict(X))
    broken = nn.Sequential(nn.Linear(5, 3), nn.Bilinear(3, 3, 2))
    with pytest.raises(MiniDNNError):
        trainer(broken)
    assert all(part.training for part in broken.modules())


def test_dropout_that_is_lost_is_told() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(50, 3))
    with pytest.warns(MiniDNNWarning, match="trains here without dropout; these drop nothing: 1"):
        trainer(module)


def test_what_is_no_network() -> None:
    with pytest.raises(GraphError, match="network=3 is a int; valid are layers and graphs"):
        trainer(3)
    with pytest.raises(GraphError, match="shape=None; valid is the input's shape with the batch"):
        trainer(own(), None)
