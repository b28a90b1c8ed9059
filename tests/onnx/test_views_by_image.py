"""Values computed image after image that are views of what has other images."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import minidnn as md
from minidnn.backends.backend import get_backend
from minidnn.errors import DeviceError
from minidnn.frontends.onnx.convert import load_onnx

SHAPE = (2, 4, 3, 5)


def test_instances_are_read_image_after_image() -> None:
    """A softmax of instances is one of 8 rows; their scale reads them as 2 images."""
    try:
        get_backend("cpu")
    except DeviceError as error:
        pytest.skip(str(error))
    x, *ys = (helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in "xyz")
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["r"]),
        helper.make_node("Softmax", ["r"], ["p"], axis=-1),
        helper.make_node("Reshape", ["p", "images"], ["q"]),
        helper.make_node("Mul", ["q", "s"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
        helper.make_node("Mod", ["x", "d"], ["z"], fmod=1),
    ]
    constants = {
        "rows": np.array((8, 15)),
        "images": np.array(SHAPE),
        "s": random.random((4, 1, 1), np.float32),
        "b": random.random((4, 1, 1), np.float32),
        "d": np.array(0.75, np.float32),
    }
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = load_onnx(
        helper.make_model(
            helper.make_graph(nodes, "instances", [x], ys, tensors),
            opset_imports=[helper.make_opsetid("", 15)],
            ir_version=8,
        )
    )
    exe = md.compile(graph, device="cpu", threads=2)
    assert "image after image" in str(exe.explain())
    array = random.standard_normal(SHAPE).astype(np.float32)
    wanted = md.compile(graph, device="reference")(array)
    for one, other in zip(exe(array).values(), wanted.values(), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-5)
