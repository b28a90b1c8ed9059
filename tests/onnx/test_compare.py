"""compare: the first layer that differs, and what is said about it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn.comparison.originals import compared
from minidnn.errors import GraphError, UnsupportedError
from minidnn.graph import operators as ops
from tests.devices import unavailable

from .models import moves, network

#: The module, whose name its one function has, too.
folding = import_module("minidnn.passes.fold")

SHAPE = {"x": (2, 3, 16, 16)}


def test_equal() -> None:
    found = md.compare(network(), shape=SHAPE, device="reference")
    assert found.equal and found.first is None
    assert len(found.layers) == 10 and len(found.outputs) == 1
    assert all(layer.deviation < 1e-6 for layer in (*found.layers, *found.outputs))
    assert str(found).startswith("10 layers in ONNX Runtime ")
    assert md.compare(moves(), device="reference").equal


def test_a_file_of_the_newest_format() -> None:
    """onnx.helper writes it unless it is told otherwise; runtimes lag behind."""
    onnx = pytest.importorskip("onnx")
    model = moves()
    model.ir_version = onnx.IR_VERSION
    assert md.compare(model, device="reference").equal
    assert model.ir_version == onnx.IR_VERSION


def test_inputs_say_the_sizes_and_are_given_in_any_form() -> None:
    x = np.random.default_rng(1).standard_normal((3, 3, 16, 16), np.float32)
    for inputs in (x, [x], {"x": x}, torch.from_numpy(x)):
        found = md.compare(network(), inputs, device="reference")
        assert found.equal and found.layers[0].shape[0] == 3
    for wrong in ({}, {"y": x}, {"x": x, "y": x}):
        with pytest.raises(GraphError, match=r"^inputs of \[.*; valid are those of \['x'\]$"):
            md.compare(network(), wrong)
    with pytest.raises(GraphError, match=r"^2 inputs given; valid are 1, of \['x'\]$"):
        md.compare(network(), [x, x])
    with pytest.raises(GraphError, match=r"shape \(3, 2, 16, 16\) for input 'x'; valid is \("):
        md.compare(network(), x[:, :2])
    with pytest.raises(GraphError, match=r"leaves sizes of its inputs open .*; give shape="):
        md.compare(network())


class Product(torch.nn.Module):
    def forward(self, a: Any, b: Any, c: Any = 1.0) -> Any:
        return (a @ b).relu() * c


def test_inputs_of_a_module_by_name() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    found = md.compare(Product().eval(), {"b": b, "a": a}, device="reference")
    assert found.equal and found.outputs[0].shape == (2, 4)
    with pytest.raises(GraphError, match=r"missing .*'b'; valid are those of Product.forward\("):
        md.compare(Product().eval(), {"a": a})
    with pytest.raises(GraphError, match=r"unexpected .*'z'; valid are those of Product"):
        md.compare(Product().eval(), {"a": a, "b": b, "z": b})


DEVICES = [
    "reference",
    pytest.param("cpu", marks=pytest.mark.together(2)),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if (reason := unavailable(name)) is not None:
        pytest.skip(reason)
    return name


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a front end means the largest number of a window, it takes the average."""

    def wrong(kernel: Any, stride: Any, *_: Any) -> Any:
        return ops.AvgPool2d(kernel, stride)

    monkeypatch.setattr(ops, "MaxPool2d", wrong)


def test_the_first_wrong_layer_is_named(device: str, fault: None) -> None:
    found = md.compare(network(), shape=SHAPE, device=device)
    assert not found.equal and found.first is not None and found.device == device
    assert (found.first.name, found.first.kind) == ("p1", "MaxPool")
    first = found.first
    assert first.deviation > 0.1 and first.original > first.ours
    text = str(found)
    assert "the first layer that differs is p1 (MaxPool, (2, 4, 4, 4)): " in text
    assert f"{first.deviation:.3g}, at {first.place} {first.original:.6g} became" in text
    assert "\n  > p1 (MaxPool" in text and "\n    r1 (Relu" in text


def test_the_first_wrong_layer_of_a_module(device: str, fault: None) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(4, 2, 1)
    ).eval()
    found = md.compare(module, shape=(2, 3, 10, 10), device=device)
    assert not found.equal and found.first is not None
    assert found.first.name.startswith("2:") and "max_pool2d" in found.first.kind
    assert found.first.shape == (2, 4, 4, 4) and found.first.deviation > 0.1
    assert [layer.deviation < 1e-5 for layer in found.layers] == [True, True, False, False]


def test_what_only_fusion_makes_wrong(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, a normalization is not folded into the convolution before it."""
    fold, factors = folding._without_norm, folding._factors

    def wrong_factors(norm: Any) -> Any:
        scale, shift = factors(norm)
        return scale, lambda: shift() + 1.0

    def wrong_fold(*arguments: Any) -> None:
        with monkeypatch.context() as within:
            within.setattr(folding, "_factors", wrong_factors)
            fold(*arguments)

    monkeypatch.setattr(folding, "_without_norm", wrong_fold)
    found = md.compare(network(), shape=SHAPE, device=device)
    assert not found.equal and found.first is None
    assert "it differs only when it is fused: minidnn bisect finds the rewrite" in str(found)


@pytest.mark.gpu
def test_modules_on_the_gpu() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval().cuda()
    with fallback_products():
        found = md.compare(module, np.ones((1, 3, 8, 8), np.float32), device="cuda")
    assert found.equal and found.device == "cuda"


def fallback_products() -> Any:
    """PyTorch in float32, too, and not in TF32."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


def test_figures() -> None:
    one = np.array([[1.0, -8.0], [np.inf, np.nan]])
    layer = compared("n", "Add", one, one + np.array([[0.0, 2.0], [0.0, 0.0]]))
    assert (layer.deviation, layer.place, layer.original, layer.ours) == (0.25, (0, 1), -8, -6)
    assert compared("n", "Add", one, np.array([[1.0, -8.0], [5.0, np.nan]])).deviation == np.inf
    assert compared("n", "Add", np.zeros(2), np.zeros(3)).deviation == np.inf
    assert compared("n", "And", np.array([True]), np.array([False])).deviation == 1.0
    assert compared("n", "Add", np.zeros((0, 2)), np.zeros((0, 2))).deviation == 0.0


class Sorted(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.sort(x).values.relu()


def test_pytorch_modules() -> None:
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
    ).eval()
    found = md.compare(module, torch.ones(1, 3, 8, 8), device="reference")
    assert found.equal and found.engine.startswith("PyTorch ")
    assert [layer.name.partition(":")[0] for layer in found.layers] == ["0", "1", "2", "3"]
    with pytest.raises(UnsupportedError, match=r"compared as a whole:\n  0: sort.default: "):
        md.compare(torch.nn.Sequential(Sorted()).eval(), torch.ones(2, 3), device="reference")


def test_errors() -> None:
    with pytest.raises(GraphError, match=r"^tolerance=0; valid is a number above 0$"):
        md.compare(network(), tolerance=0)
    with pytest.raises(GraphError, match=r"^seed=-1; valid is an int of at least 0$"):
        md.compare(network(), seed=-1)
    with pytest.raises(GraphError, match=r"is a list; valid are ONNX models and PyTorch modules$"):
        md.compare([])
    with pytest.raises(GraphError, match=r"input 'x' is float64\[1\]; valid is float32\[2, 3, "):
        md.compare(network(), np.zeros(1), shape=SHAPE)
    with pytest.raises(GraphError, match=r"^input 'x' is no array: .*inhomogeneous"):
        md.compare(network(), {"x": [[1.0], [2.0, 3.0]]})
    module = torch.nn.ReLU().eval()
    for given in ({}, {"inputs": torch.ones(2), "shape": (2,)}):
        with pytest.raises(GraphError, match=r"that shape= gives, or .* valid is one of both$"):
            md.compare(module, **given)
    for shape in ("abc", ("a",), (1.0, 2), ((2, 3), "b"), 5, (-1, 2)):
        with pytest.raises(GraphError, match=r"^shape=.*; valid is a shape such as"):
            md.compare(module, shape=shape)
    for inputs in ("abc", [torch.ones(2), None], 5):
        with pytest.raises(GraphError, match=r"^inputs: .*; valid are arrays and tensors$"):
            md.compare(module, inputs)
    with pytest.raises(GraphError, match=r"^the model computes nothing of its inputs: there is "):
        md.compare(torch.nn.Identity().eval(), torch.ones(2))
    with pytest.raises(GraphError, match=r"^a PyTorch module is compared without constants"):
        md.compare(module, torch.ones(2), constants={"x": 1})
    with pytest.raises(GraphError, match=r"^ReLU is in training mode; .* module\.eval\(\) first$"):
        md.compare(torch.nn.ReLU(), torch.ones(2))
