"""Sums of products of quantized numbers: to the last bit what ONNX defines, whoever computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import minidnn as md
from minidnn.errors import UnsupportedError
from minidnn.frontends.onnx.convert import load_onnx
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Node
from minidnn.graph.operators import Conv2d, Linear
from tests.cases.bytes import drawn

from .models import model, node

TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}
DEVICES = [
    "reference",
    pytest.param("cpu", marks=pytest.mark.together(2)),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def convolved(
    x: np.ndarray, weight: np.ndarray, pads: tuple[int, ...], stride: int, groups: int
) -> np.ndarray:
    """The sums in int64, term by term; ``pads`` are those of the beginnings, then of the ends."""
    padded = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    out, per_group, kh, kw = weight.shape
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kh, kw), (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    n, _, rows, columns = windows.shape[:4]
    grouped = windows.reshape(n, groups, per_group, rows, columns, kh, kw)
    weights = weight.reshape(groups, out // groups, per_group, kh, kw)
    return np.einsum("ngcyxij,gocij->ngoyx", grouped, weights).reshape(n, out, rows, columns)


def rescaled(sums: np.ndarray, factor: Any, zero: int, dtype: str) -> np.ndarray:
    """Sums times a factor in float32, to the nearest, ties to even, saturated."""
    whole = np.rint(sums.astype(np.float32) * factor.astype(np.float32)) + np.float32(zero)
    bounds = np.iinfo(dtype)
    return np.clip(whole, bounds.min, bounds.max).astype(dtype)


def typed(made: Any, **dtypes: str) -> Any:
    for value in (*made.graph.input, *made.graph.output):
        if value.name in dtypes:
            value.type.tensor_type.elem_type = TYPES[dtypes[value.name]]
    return made


def _is_wide(node: Node) -> bool:
    """Whether a contraction's weight does not fit int8."""
    return isinstance(node.op, (Conv2d, Linear)) and node.inputs[1].dtype != "int8"


def check(made: Any, device: str, x: np.ndarray, wanted: np.ndarray) -> None:
    graph = load_onnx(made)
    if device == "cuda" and any(_is_wide(node) for node in graph.nodes):
        with pytest.raises(UnsupportedError, match="valid are int8 and uint8 by int8"):
            md.compile(graph, device=device)
        return
    if device == "reference":
        (found,) = evaluate(graph, [x])
    else:
        found = np.asarray(md.compile(graph, device=device)(x))
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


# Channels in, channels out, kernel, pads, stride, groups, size.
CONVOLUTIONS = [
    (3, 5, 3, (1, 1, 1, 1), 1, 1, (7, 9)),
    (16, 20, 1, (0, 0, 0, 0), 1, 1, (5, 5)),
    (19, 33, 3, (0, 1, 2, 0), 2, 1, (8, 6)),
    (32, 48, 5, (2, 2, 2, 2), 1, 1, (6, 11)),
    (12, 8, 3, (1, 1, 1, 1), 1, 4, (5, 6)),
    (16, 16, 3, (1, 1, 1, 1), 2, 16, (9, 9)),
    (130, 7, 1, (0, 0, 0, 0), 2, 1, (5, 4)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
def test_convolutions(shape: Any, device: str, warm_cache: Any) -> None:
    """QLinearConv, a scale and a zero for each channel, and ConvInteger."""
    signed = ["uint8", "int8"][CONVOLUTIONS.index(shape) % 2]
    inputs, outputs, kernel, pads, stride, groups, size = shape
    random = np.random.default_rng([inputs, outputs])
    x = drawn(random, (2, inputs, *size), signed)
    unsigned_weight = inputs == 3
    weight = drawn(
        random,
        (outputs, inputs // groups, kernel, kernel),
        "uint8" if unsigned_weight else "int8",
    )
    weight_zero = np.zeros((), np.int8)
    if unsigned_weight:
        weight_zero = random.integers(100, 140, outputs, np.uint8)
    zero = int(random.integers(np.iinfo(signed).min, np.iinfo(signed).max))
    bias = random.integers(-9000, 9000, outputs).astype(np.int32)
    attributes = {"pads": list(pads), "strides": [stride, stride], "group": groups}

    shifted = weight.astype(np.int64) - np.reshape(weight_zero, (-1, 1, 1, 1)).astype(np.int64)
    sums = convolved(x.astype(np.int64) - zero, shifted, pads, stride, groups)
    made = model(
        [node("ConvInteger", "x w zero weight_zero", **attributes)],
        [("x", list(x.shape))],
        [("y", list(sums.shape))],
        {"w": weight, "zero": np.array(zero, signed), "weight_zero": weight_zero},
    )
    check(typed(made, x=signed, y="int32"), device, x, sums.astype(np.int32))

    x_scale = np.float32(0.02)
    weight_scale = (random.random(outputs).astype(np.float32) + np.float32(0.5)) / np.float32(90)
    y_scale = x_scale * weight_scale.mean() * np.float32(sums.std() / 60)
    zeros = weight_zero if unsigned_weight else np.zeros(outputs, np.int8)
    made = model(
        [node("QLinearConv", "x xs zero w ws weight_zero ys yz bias", **attributes)],
        [("x", list(x.shape))],
        [("y", list(sums.shape))],
        {
            **{"w": weight, "zero": np.array(zero, signed), "weight_zero": zeros, "bias": bias},
            **{"xs": x_scale, "ws": weight_scale, "ys": y_scale, "yz": np.array(3, signed)},
        },
    )
    factor = (x_scale * weight_scale / y_scale)[:, None, None]
    wanted = rescaled(sums + bias[:, None, None], factor, 3, signed)
    assert len(np.unique(wanted)) > 20  # not all saturated
    check(typed(made, x=signed, y=signed), device, x, wanted)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("left", "right"), [("uint8", "int8"), ("int8", "int8"), ("int8", "uint8")]
)
@pytest.mark.parametrize("shape", [((5, 40), (40, 33)), ((2, 3, 7), (7, 16)), ((1, 300), (300, 9))])
def test_products(shape: Any, left: str, right: str, device: str, warm_cache: Any) -> None:
    """MatMulInteger and QLinearMatMul by a weight."""
    random = np.random.default_rng(shape[1])
    a, b = drawn(random, shape[0], left), drawn(random, shape[1], right)
    a_zero, b_zero = np.array(17, left), np.array(random.integers(0, 99), right)
    sums = (a.astype(np.int64) - 17) @ (b.astype(np.int64) - int(b_zero))
    made = model(
        [node("MatMulInteger", "x b az bz")],
        [("x", list(a.shape))],
        [("y", list(sums.shape))],
        {"b": b, "az": a_zero, "bz": b_zero},
    )
    check(typed(made, x=left, y="int32"), device, a, sums.astype(np.int32))
    scales = {name: np.float32(s) for name, s in (("s", 0.03), ("bs", 0.011), ("ys", 1.7))}
    made = model(
        [node("QLinearMatMul", "x s az b bs bz ys az")],
        [("x", list(a.shape))],
        [("y", list(sums.shape))],
        {"b": b, "az": a_zero, "bz": b_zero, **scales},
    )
    factor = scales["s"] * scales["bs"] / scales["ys"]
    check(typed(made, x=left, y=left), device, a, rescaled(sums, factor, 17, left))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantizing(dtype: str, device: str, warm_cache: Any) -> None:
    """Halves go to even numbers, what is too large saturates, and NaN becomes the least."""
    bounds = np.iinfo(dtype)
    x = np.concatenate(
        [
            np.arange(-600, 600, dtype=np.float32) / 4,
            np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42, -0.0], np.float32),
        ]
    )[None]
    made = model(
        [node("QuantizeLinear", "x s z")],
        [("x", list(x.shape))],
        arrays={"s": np.float32(0.5), "z": np.array(5, dtype)},
    )
    made.graph.output[0].type.tensor_type.elem_type = TYPES[dtype]
    with np.errstate(all="ignore"):
        whole = np.rint(x.astype(np.float64) / 0.5) + 5
        whole = np.clip(np.where(np.isnan(whole), bounds.min, whole), bounds.min, bounds.max)
    check(made, device, x, whole.astype(dtype))


def test_sums_wrap() -> None:
    """Sums of int32 wrap, as ONNX has them and processors add."""
    from minidnn.graph import operators as ops

    x = np.full((1, 4), -(1 << 31), np.int32)
    (found,) = ops.Linear().reference(x, np.full((1, 4), 3, np.int8))
    assert found.tolist() == [[0]]
    (found,) = ops.Linear(zero=1).reference(x[:, :1], np.full((1, 1), 1, np.int8))
    assert found.tolist() == [[(1 << 31) - 1]]


def test_requantization_is_part_of_the_contraction(warm_cache: Any) -> None:
    """Also by a scale for each channel: nothing lies in memory in int32."""
    random = np.random.default_rng(3)
    arrays: dict[str, Any] = {"xs": np.float32(0.1), "zero": np.uint8(3), "ys": np.float32(0.9)}
    arrays |= {"w": drawn(random, (20, 16, 1, 1), "int8"), "wz": np.int8(0)}
    arrays["ws"] = random.random(20).astype(np.float32)
    made = model(
        [node("QLinearConv", "x xs zero w ws wz ys zero")], [("x", (1, 16, 5, 5))], arrays=arrays
    )
    graph = load_onnx(typed(made, x="uint8", y="uint8"))
    nodes = md.compile(graph, device="cpu").plan.graph.nodes
    assert {value.dtype for node in nodes for value in node.outputs} == {"uint8"}
