"""compare: the first layer that differs, and what is said about it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn.comparison.report import compared
from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.operators import pooling
from minidnn.graph import operators as ops

from .models import moves, network

SHAPE = {"x": (2, 3, 16, 16)}


def test_equal() -> None:
    found = md.compare(network(), shape=SHAPE, device="reference")
    assert found.equal and found.first is None
    assert len(found.layers) == 10 and len(found.outputs) == 1
    assert all(layer.deviation < 1e-6 for layer in (*found.layers, *found.outputs))
    assert str(found).startswith("10 layers in ONNX Runtime ")
    assert md.compare(moves(), device="reference").equal


def test_the_first_wrong_layer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A converter that pools over windows of another stride."""
    right = pooling._operator

    def wrong(window: Any) -> Any:
        op = right(window)
        return ops.AvgPool2d((2, 2), (2, 2)) if isinstance(op, ops.MaxPool2d) else op

    monkeypatch.setattr(pooling, "_operator", wrong)
    found = md.compare(network(), shape=SHAPE, device="reference")
    assert not found.equal and found.first is not None
    assert (found.first.name, found.first.kind) == ("p1", "MaxPool")
    assert found.first.deviation > 0.1
    text = str(found)
    assert "the first layer that differs is p1 (MaxPool, (2, 4, 4, 4)): " in text
    assert "\n  > p1 (MaxPool" in text and "\n    r1 (Relu" in text


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
    with pytest.raises(UnsupportedError, match="are not known, so that it cannot be compared"):
        md.compare(Sorted(), torch.ones(2, 3), device="reference")


def test_errors() -> None:
    with pytest.raises(GraphError, match=r"^tolerance=0; valid is a number above 0$"):
        md.compare(network(), tolerance=0)
    with pytest.raises(GraphError, match=r"is a list; valid are ONNX models and PyTorch modules$"):
        md.compare([])
    with pytest.raises(GraphError, match=r"input 'x' is float64\[1\]; valid is float32\[2, 3, "):
        md.compare(network(), np.zeros(1), shape=SHAPE)
    with pytest.raises(GraphError, match=r"without shape and constants$"):
        md.compare(torch.nn.ReLU())
