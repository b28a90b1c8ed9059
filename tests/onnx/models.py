"""Small models that tests read, mutate and compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 21


def model(
    nodes: Sequence[Any],
    inputs: Sequence[tuple[str, Any]],
    outputs: Sequence[tuple[str, Any]] = (("y", None),),
    arrays: Mapping[str, Any] | None = None,
    opset: int = OPSET,
    dtype: int = TensorProto.FLOAT,
) -> Any:
    """A model of nodes, inputs as (name, sizes) and initializers."""

    def info(name: str, sizes: Any) -> Any:
        return helper.make_tensor_value_info(name, dtype, sizes)

    graph = helper.make_graph(
        nodes,
        "test",
        [info(*each) for each in inputs],
        [info(*each) for each in outputs],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in (arrays or {}).items()
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 9
    return made


def node(kind: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    """A node; names are separated by spaces, ``_`` is an absent one."""
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(kind, names, outputs.split(), **attributes)


def network() -> Any:
    """A small convolutional network with an open batch."""
    random = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32) / 4

    return model(
        [
            node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1], strides=[2, 2]),
            node("BatchNormalization", "c1 scale shift mean var", "n1"),
            node("Relu", "n1", "r1"),
            node("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", "p1 w2", "c2", group=4),
            node("Add", "c2 p1", "a"),
            node("GlobalAveragePool", "a", "g"),
            node("Shape", "g", "s"),
            node("Gather", "s zero", "batch", axis=0),
            node("Unsqueeze", "batch zeros", "first"),
            node("Concat", "first minus", "target", axis=0),
            node("Reshape", "g target", "f"),
            node("Gemm", "f w3 b3", "l", transB=1),
            node("Softmax", "l", "y"),
        ],
        [("x", ["N", 3, 16, 16])],
        [("y", ["N", 5])],
        {
            "w1": weights(4, 3, 3, 3),
            "b1": weights(4),
            "scale": weights(4),
            "shift": weights(4),
            "mean": weights(4),
            "var": np.abs(weights(4)) + 1,
            "w2": weights(4, 1, 1, 1),
            "w3": weights(5, 4),
            "b3": weights(5),
            "zero": np.array(0),
            "zeros": np.array([0]),
            "minus": np.array([-1]),
        },
    )


def moves() -> Any:
    """A model of moves and arithmetic on shapes, all by operands that could be anything."""
    return model(
        [
            node("Slice", "x starts ends axes steps", "a"),
            node("Pad", "a pads value", "b", mode="constant"),
            node("Transpose", "b", "c", perm=[0, 2, 3, 1]),
            node("Expand", "c shape", "d"),
            node("Resize", "d _ scales", "e", mode="linear"),
            node("Split", "e parts", "f g", axis=3),
            node("Tile", "f times", "h"),
            node("ConstantOfShape", "parts", "i"),
            node("ReduceSum", "h axes2", "j", keepdims=0),
            node("ArgMax", "j", "k", axis=1),
            node("Cast", "k", "l", to=TensorProto.FLOAT),
            node("ConvTranspose", "x w", "m", strides=[2, 2], pads=[1, 0, 0, 1]),
            node("AveragePool", "m", "n", kernel_shape=[3, 2], auto_pad="SAME_UPPER"),
            node("ReduceMax", "n", "o", keepdims=0),
            node("Add", "l o", "y"),
        ],
        [("x", [1, 2, 6, 7])],
        arrays={
            "starts": np.array([5, 0]),
            "ends": np.array([-100, 6]),
            "axes": np.array([2, 3]),
            "steps": np.array([-2, 1]),
            "pads": np.array([0, 0, 1, 0, 0, 1, 0, 2]),
            "value": np.array(0.5, np.float32),
            "shape": np.array([2, 1, 1, 1]),
            "scales": np.array([1, 1, 2, 1], np.float32),
            "parts": np.array([1, 2]),
            "times": np.array([1, 1, 2, 1]),
            "axes2": np.array([1]),
            "w": np.ones((2, 3, 2, 2), np.float32),
        },
    )


def with_external_data(folder: Path) -> bytes:
    """The network with its first weights in ``folder / "weights.bin"``."""
    made = network()
    tensor = made.graph.initializer[0]
    (folder / "weights.bin").write_bytes(b"\0" * 64 + tensor.raw_data)
    for key, value in (
        ("location", "weights.bin"),
        ("offset", "64"),
        ("length", str(len(tensor.raw_data))),
    ):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    return bytes(made.SerializeToString())


def save(made: Any, path: Path) -> Path:
    onnx.save(made, path)
    return path
