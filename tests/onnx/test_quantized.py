"""uint8 inputs, and constants of few bits: what ONNX's reference and ONNX Runtime make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import minidnn as md
from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.convert import load_onnx
from minidnn.graph.evaluate import evaluate

from .models import model, node

RANDOM = np.random.default_rng(11)


def tensor(name: str, kind: int, array: np.ndarray, packed: bool = True) -> Any:
    """An initializer of that element type; 4 bits from their numbers, as raw data or int32."""
    if kind not in (TensorProto.INT4, TensorProto.UINT4):
        return numpy_helper.from_array(array, name)
    flat = array.reshape(-1).astype(np.int64)
    pairs = np.pad(flat, (0, flat.size % 2)).reshape(-1, 2) & 15
    bytes_ = (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8)
    made = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
    if packed:
        made.raw_data = bytes_.tobytes()
    else:
        made.int32_data.extend(bytes_.tolist())
    return made


def dequantizing(
    kind: int, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, **attributes: Any
) -> Any:
    """y = DequantizeLinear of constants + x, of which nothing but the sum must be left."""
    names = "q s z" if zero is not None else "q s"
    made = model(
        [node("DequantizeLinear", names, "d", **attributes), node("Add", "x d")],
        [("x", list(x.shape))],
        [("y", list(x.shape))],
        {"s": scale},
    )
    made.graph.initializer.append(tensor("q", kind, x))
    if zero is not None:
        made.graph.initializer.append(tensor("z", kind, zero, packed=False))
    return made


LIMITS = {
    TensorProto.INT8: (-128, 128, np.int8),
    TensorProto.UINT8: (0, 256, np.uint8),
    TensorProto.INT16: (-32768, 32768, np.int16),
    TensorProto.UINT16: (0, 65536, np.uint16),
    TensorProto.INT4: (-8, 8, np.int8),
    TensorProto.UINT4: (0, 16, np.uint8),
    TensorProto.INT32: (-(1 << 20), 1 << 20, np.int32),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", LIMITS, ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("how", ["tensor", "axis", "last axis", "blocks"])
def test_constants_are_folded(kind: int, how: str) -> None:
    low, high, dtype = LIMITS[kind]
    shape = (3, 5, 7)
    x = RANDOM.integers(low, high, shape).astype(dtype)
    x.reshape(-1)[:2] = low, high - 1
    sizes, attributes = {
        "tensor": ((), {}),
        "axis": ((5,), {}),
        "last axis": ((7,), {"axis": -1}),
        "blocks": ((3, 2, 7), {"axis": 1, "block_size": 3}),
    }[how]
    scale = (RANDOM.random(sizes) + 0.01).astype(np.float32)
    zero = None
    if kind != TensorProto.INT32:
        zero = np.asarray(RANDOM.integers(low, high, sizes), dtype)
    made = dequantizing(kind, x, scale, zero, **attributes)
    graph = load_onnx(made)
    assert [each.op.name for each in graph.nodes] == ["Add"]
    given = RANDOM.standard_normal(shape).astype(np.float32)
    wanted = ReferenceEvaluator(made).run(None, {"x": given})[0]
    (found,) = evaluate(graph, [given])
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())
    session = onnxruntime.InferenceSession(made.SerializeToString())
    np.testing.assert_allclose(found, session.run(None, {"x": given})[0], rtol=1e-6, atol=1e-3)


def picture(device: str) -> np.ndarray:
    """A network that takes bytes, moves them and makes numbers of them."""
    made = model(
        [
            node("Transpose", "x", "t", perm=[0, 3, 1, 2]),
            node("Slice", "t one four axis", "c"),
            node("Cast", "c", "f", to=TensorProto.FLOAT),
            node("Div", "f full", "d"),
            node("DequantizeLinear", "w s z", "v"),
            node("Conv", "d v", "o"),
            node("Relu", "o"),
        ],
        [("x", [2, 9, 8, 3])],
        [("y", [2, 4, 5, 4])],
        {
            "full": np.array(255, np.float32),
            "w": np.arange(-54, 54, dtype=np.int8).reshape(4, 3, 3, 3),
            "s": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
            "z": np.array([0, 1, -1, 5], np.int8),
            "one": np.array([1, 2]),
            "four": np.array([8, 8]),
            "axis": np.array([2, 3]),
        },
        opset=19,
    )
    made.graph.node[4].attribute.append(helper.make_attribute("axis", 0))
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    x = RANDOM.integers(0, 256, (2, 9, 8, 3)).astype(np.uint8)
    found = md.compile(made, device=device)(x)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    np.testing.assert_allclose(found, session.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)
    return np.asarray(found)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "device", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_bytes_as_inputs(device: str) -> None:
    assert picture(device).shape == (2, 4, 5, 4)


def test_bytes_are_dequantized_at_run_time() -> None:
    made = model(
        [node("DequantizeLinear", "x s z")],
        [("x", [2, 5])],
        arrays={"s": np.array(0.25, np.float32), "z": np.array(128, np.uint8)},
    )
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    x = RANDOM.integers(0, 256, (2, 5)).astype(np.uint8)
    found = md.compile(made, device="reference")(x)
    np.testing.assert_array_equal(found, (x.astype(np.float32) - 128) * np.float32(0.25))


def few_bits(**arrays: Any) -> dict[str, Any]:
    own: dict[str, Any] = {
        "q": np.arange(6).astype(np.int8).reshape(2, 3),
        "s": np.array(1, np.float32),
    }
    return {**own, **arrays}


INPUT = [("x", [2, 3])]
WRONG: list[tuple[type[Exception], Callable[[], Any], str]] = [
    (
        UnsupportedError,
        lambda: model([node("Add", "q q", "a"), node("Cast", "a", to=1)], INPUT, arrays=few_bits()),
        "'Add_0' (Add): it computes in int8; int8 can be moved, and made to another dtype by Cast "
        "or DequantizeLinear",
    ),
    (
        UnsupportedError,
        lambda: model([node("Identity", "q")], INPUT, arrays=few_bits(q=np.arange(6, dtype="i2"))),
        "output 'y' is int16; valid are float32, ",
    ),
    (
        UnsupportedError,
        lambda: model([node("Cast", "x", to=2)], INPUT, dtype=6),
        "'Cast_0' (Cast): it makes uint8 of int32, which would wrap; valid is a float",
    ),
    (
        UnsupportedError,
        lambda: model([node("QuantizeLinear", "x s z")], INPUT, arrays=few_bits(z=np.int16(0))),
        "it makes int16 of float32 by a scale in float32; valid are int8 and uint8 of float32 by "
        "float32",
    ),
    (
        GraphError,
        lambda: model(
            [node("QuantizeLinear", "x s z")], INPUT, arrays=few_bits(z=np.zeros(3, np.int8))
        ),
        "its zero point has shape (3,); valid is (), as its scale",
    ),
    (
        UnsupportedError,
        lambda: model(
            [node("QLinearMatMul", "q x z q s z s z")],
            [("x", [])],
            arrays=few_bits(q=np.zeros((3, 3), np.int8), z=np.int8(0)),
        ),
        "its scale is computed at run time, from 'x'; give these inputs as constants=",
    ),
    (
        GraphError,
        lambda: model(
            [node("DequantizeLinear", "q s")], INPUT, arrays=few_bits(s=np.ones(2, np.float32))
        ),
        "its scale has shape (2,); valid is (), or (3,) for axis 1 of its input (2, 3)",
    ),
    (
        GraphError,
        lambda: model(
            [node("DequantizeLinear", "q s z")], INPUT, arrays=few_bits(z=np.array(1, np.uint8))
        ),
        "its x_zero_point is uint8; valid is int8, as its x is",
    ),
]


@pytest.mark.parametrize(("kind", "wrong", "text"), WRONG, ids=[text[:40] for *_, text in WRONG])
def test_what_is_refused(kind: type[Exception], wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(kind) as caught:
        load_onnx(wrong())
    assert text in str(caught.value)


def test_few_bits_are_moved() -> None:
    """Reshaped, turned and cut before they stand for numbers, they are as in ONNX's reference."""
    made = model(
        [
            node("Constant", "", "k", value=numpy_helper.from_array(np.array([[1], [2]], np.int8))),
            node("Concat", "q k", "c", axis=1),
            node("Transpose", "c", "t"),
            node("DequantizeLinear", "t s", "d"),
            node("Cast", "k", "f", to=TensorProto.FLOAT),
            node("MatMul", "x d", "m"),
            node("MatMul", "m f"),
        ],
        [("x", [2, 4])],
        [("y", [2, 1])],
        few_bits(),
    )
    x = RANDOM.standard_normal((2, 4)).astype(np.float32)
    wanted = ReferenceEvaluator(made).run(None, {"x": x})[0]
    np.testing.assert_allclose(evaluate(load_onnx(made), [x])[0], wanted, rtol=1e-5)
