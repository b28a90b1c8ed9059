"""Networks in float16 and float64 on the CPU: computed in float32, with results in their dtype."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, MiniDNNWarning

RANDOM = np.random.default_rng(3)
SHAPE = (2, 3, 9, 8)
TYPES = {"float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE}


def network(dtype: str) -> Any:
    """Convolution, casts there and back, and a sum: an ONNX model in that dtype."""
    weight = RANDOM.standard_normal((4, 3, 3, 3)).astype(dtype)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Sigmoid", ["f"], ["s"]),
        helper.make_node("Cast", ["s"], ["t"], to=TYPES[dtype]),
        helper.make_node("Mul", ["t", "c"], ["y"]),
        helper.make_node("GlobalAveragePool", ["s"], ["z"]),
    ]
    infos = [
        helper.make_tensor_value_info(name, kind, None)
        for name, kind in (("y", TYPES[dtype]), ("z", TensorProto.FLOAT))
    ]
    x = helper.make_tensor_value_info("x", TYPES[dtype], SHAPE)
    graph = helper.make_graph(nodes, "net", [x], infos, [numpy_helper.from_array(weight, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    return made


@pytest.fixture(params=["float16", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def test_onnx_models(dtype: str) -> None:
    made = network(dtype)
    told = f"device 'cpu' computes in float32, and the network is in {dtype}: inputs and results"
    with pytest.warns(MiniDNNWarning, match=told) as caught:
        exe = md.compile(made, device="cpu")
    assert caught[0].filename == __file__
    assert exe.explain().startswith(f"net on cpu in float32 (results in {dtype}), priced for")
    assert "float32 (results in" in exe.explain(measure=True)
    x = RANDOM.standard_normal(SHAPE).astype(dtype)
    if dtype == "float16":
        wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    else:  # in which ONNX Runtime has no convolution
        wanted = ReferenceEvaluator(made).run(None, {"x": x})
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    for name, other in zip(("y", "z"), wanted, strict=True):
        found = exe(x)[name]
        assert found.dtype == other.dtype
        np.testing.assert_allclose(found, other, rtol=tolerance, atol=tolerance)
    out = [np.empty(other.shape, other.dtype) for other in wanted]
    exe(x, out=out)
    np.testing.assert_array_equal(out[0], exe(x)["y"])
    with pytest.raises(GraphError, match=rf"out\[0\] is float32.*NumPy array {dtype}\["):
        exe(x, out=[each.astype(np.float32) for each in out])


def test_who_says_float32_is_not_warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exe = md.compile(network("float64"), device="cpu", precision="float32")
    assert exe(np.zeros(SHAPE))["y"].dtype == np.float64


def test_what_is_too_large_is_infinite(dtype: str) -> None:
    x = md.Input((4,), dtype=dtype)
    net = md.Model(x, x * 2.0)
    exe = md.compile(net, (1, 4), device="cpu", precision="float32")
    large = float(np.finfo(dtype).max)
    found = exe(np.array([[large, 1.0, -large, np.nan]], dtype))
    np.testing.assert_array_equal(found, np.array([[np.inf, 2.0, -np.inf, np.nan]], dtype))


@pytest.mark.parametrize("kind", [torch.float16, torch.float64])
def test_modules(kind: torch.dtype) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Tanh()).to(kind).eval()
    exe = md.compile(module, (2, 5), device="cpu", precision="float32")
    x = torch.randn(2, 5, dtype=kind)
    with torch.no_grad():
        wanted = module(x)
    found = exe(x)
    assert found.dtype == kind
    torch.testing.assert_close(found, wanted, rtol=3e-3, atol=3e-3)


def test_float32_networks_are_left_alone() -> None:
    exe = md.compile(L.ReLU(), (1, 4), device="cpu")
    assert exe.result_dtypes is None
    assert exe.explain().startswith("ReLU on cpu in float32, priced")
