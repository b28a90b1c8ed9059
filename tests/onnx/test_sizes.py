"""Models of which two sizes show what the graphs of all others are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import minidnn as md
from minidnn.frontends.onnx.model import read_model
from minidnn.frontends.onnx.operators import elementwise
from minidnn.frontends.onnx.shapes import _SAME, looks_at_sizes
from minidnn.runtime.plan import described
from tests.onnx.models import model, node

CHANNELS = 4
MOST, HALFWAY = (90, 80), (46, 42)
OTHERS = [(9, 3), (3, 70), (17, 90), (90, 31), (51, 51), (6, 80)]
LOGICAL = ("And", "Or", "Xor")


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).random(shape).astype(np.float32)


WEIGHT, VECTOR, SQUARE = _random(6, CHANNELS, 3, 3), _random(CHANNELS), _random(CHANNELS, 5)
BYTES, SCALE, ZERO = np.arange(216, dtype=np.int8).reshape(6, 4, 3, 3), np.float32(0.1), np.uint8(7)
ROWS = np.arange(20, dtype=np.int8).reshape(4, 5)
WINDOW: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [3, 2], "pads": [1, 0, 1, 2]}


def _bytes(*nodes: Any) -> list[Any]:
    """Nodes on the bytes of the input."""
    return [node("QuantizeLinear", "x scale zero", "q"), *nodes]


def _matrices(last: Any) -> list[Any]:
    return [node("Transpose", "x", "t", perm=[0, 2, 3, 1]), last]


QUANTIZED = {"scale": SCALE, "zero": ZERO, "signed": np.int8(3), "w": BYTES, "rows": ROWS}
#: Nodes and arrays of those operators that do not read the input alone.
CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "AveragePool": ([node("AveragePool", "x", ceil_mode=1, **WINDOW)], {}),
    "MaxPool": ([node("MaxPool", "x", **WINDOW, dilations=[1, 1])], {}),
    "Conv": ([node("Conv", "x w", strides=[2, 1], pads=[1, 2, 0, 1])], {"w": WEIGHT}),
    "BatchNormalization": ([node("BatchNormalization", "x v v v v")], {"v": VECTOR}),
    "Clip": ([node("Clip", "x low")], {"low": np.float32(0.5)}),
    "Concat": ([node("Concat", "x x", axis=1)], {}),
    "Constant": (
        [
            helper.make_node("Constant", [], ["c"], value_float=2.0),
            node("Mul", "x c"),
        ],
        {},
    ),
    "SwiGLU": ([node("SwiGLU", "x x")], {}),
    "Transpose": ([node("Transpose", "x", perm=[0, 2, 3, 1])], {}),
    "Flatten": ([node("GlobalAveragePool", "x", "g"), node("Flatten", "g")], {}),
    "Reshape": (
        [node("GlobalMaxPool", "x", "g"), node("Reshape", "g shape")],
        {"shape": np.array([0, -1])},
    ),
    "Gemm": (
        [node("GlobalMaxPool", "x", "g"), node("Flatten", "g", "f"), node("Gemm", "f m")],
        {"m": SQUARE},
    ),
    "MatMul": (_matrices(node("MatMul", "t m")), {"m": SQUARE}),
    "QuantizeLinear": (_bytes(node("DequantizeLinear", "q scale zero")), QUANTIZED),
    "DequantizeLinear": (
        _bytes(
            node("DequantizeLinear", "q scale zero", "d"),
            node("DequantizeLinear", "w scale signed", "f"),
            node("Conv", "d f", strides=[2, 2]),
        ),
        QUANTIZED,
    ),
    "QLinearConv": (
        _bytes(
            node("QLinearConv", "q scale zero w scale signed scale zero", "r", pads=[1, 1, 1, 1]),
            node("DequantizeLinear", "r scale zero"),
        ),
        QUANTIZED,
    ),
    "ConvInteger": (
        _bytes(node("ConvInteger", "q w zero", "r"), node("Cast", "r", to=TensorProto.FLOAT)),
        QUANTIZED,
    ),
    "QLinearMatMul": (
        [
            *_matrices(node("QuantizeLinear", "t scale zero", "q")),
            node("QLinearMatMul", "q scale zero rows scale signed scale zero", "r"),
            node("DequantizeLinear", "r scale zero"),
        ],
        QUANTIZED,
    ),
    "PRelu": ([node("PRelu", "x v")], {"v": VECTOR.reshape(-1, 1, 1)}),
    "Where": ([node("Less", "x v", "c"), node("Where", "c x v")], {"v": np.float32(0.5)}),
    "Not": ([node("Less", "x x", "c"), node("Not", "c")], {}),
    "Cast": ([node("Cast", "x", to=TensorProto.INT32)], {}),
    "CastLike": ([node("CastLike", "x v")], {"v": np.int32(1)}),
    "ThresholdedRelu": ([node("ThresholdedRelu", "x", alpha=0.5)], {}),
    **{kind: ([node("Less", "x x", "c"), node(kind, "c c")], {}) for kind in LOGICAL},
}


def _model(kind: str) -> Any:
    if kind in CASES:
        nodes, arrays = CASES[kind]
    elif kind in elementwise.CONVERTERS:  # of pixels and the averages of their channels
        nodes, arrays = [node("GlobalAveragePool", "x", "g"), node(kind, "x g")], {}
    else:
        nodes, arrays = [node(kind, "x")], {}
    opset = OPSETS.get(kind, 21)
    made = model(nodes, [("x", [1, CHANNELS, "H", "W"])], arrays=arrays, opset=opset)
    made.graph.output[0].ClearField("type")
    return made


#: Of what came to ONNX later than the others.
OPSETS = {"SwiGLU": 27, "Swish": 24}
KINDS = [kind for kind in sorted(_SAME) if OPSETS.get(kind, 21) <= onnx.defs.onnx_opset_version()]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_is_the_same_for_all_sizes(kind: str) -> None:
    opened = read_model(_model(kind))
    assert not looks_at_sizes(opened)

    def of(size: tuple[int, int]) -> Any:
        return md.load_onnx(opened.proto, (1, CHANNELS, *size))

    graph = of(MOST)
    arrays = {value.name: value.data for value in graph.constants}
    expected = described(graph, arrays)
    assert described(of(HALFWAY), arrays) == expected
    for size in OTHERS:
        assert described(of(size), arrays) == expected, size


@pytest.mark.parametrize(
    "looks",
    [
        node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("Shape", "x"),
        node("Resize", "x _ scales"),
        node("Squeeze", "x"),
        helper.make_node("Relu", ["x"], ["y"], domain="others"),
    ],
    ids=lambda each: str(each.op_type),
)
def test_others_are_asked_at_each_size(looks: Any) -> None:
    scales = np.array([1, 1, 2, 2], np.float32)
    made = model([looks], [("x", [1, CHANNELS, "H", "W"])], arrays={"scales": scales})
    made.opset_import.append(helper.make_opsetid("others", 1))
    assert looks_at_sizes(read_model(made))
