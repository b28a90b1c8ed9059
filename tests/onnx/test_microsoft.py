"""ONNX Runtime's own operators of quantized numbers, beside what they stand for in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.convert import load_onnx

from .models import model
from .test_integer import check, drawn, rescaled, typed

DEVICES = ["reference", pytest.param("cpu", marks=pytest.mark.together(2))]
X, Y = (np.float32(0.043), 121), (np.float32(0.07), 90)
OUT = (np.float32(0.093), 60)


def own(kind: str, inputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(kind, inputs, ["y"], domain="com.microsoft", **attributes)


def loaded(made: Any, dtype: str = "uint8", result: str | None = None) -> Any:
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    given = {"x": dtype} if result == "float32" else {"x": dtype, "y": result or dtype}
    return typed(made, **given)


def numbers(x: np.ndarray, steps: tuple[Any, int]) -> np.ndarray:
    return (x.astype(np.float32) - np.float32(steps[1])) * steps[0]


def whole(y: np.ndarray, steps: tuple[Any, int], dtype: str) -> np.ndarray:
    return rescaled(y / steps[0], np.float32(1), steps[1], dtype)


def arrays(dtype: str, **steps: tuple[Any, int]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, (scale, zero) in steps.items():
        shift = 128 if dtype == "int8" else 0
        found |= {f"{name}s": scale, f"{name}z": np.array(zero - shift, dtype)}
    return found


def shifted(steps: tuple[Any, int], dtype: str) -> tuple[Any, int]:
    return steps[0], steps[1] - (128 if dtype == "int8" else 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("device", "dtype"), [("reference", "uint8"), ("reference", "int8"), ("cpu", "uint8")]
)
@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul", "QLinearConcat"])
def test_of_two(kind: str, dtype: str, device: str, warm_cache: Any) -> None:
    random, shape = np.random.default_rng(0), (2, 19, 5, 7)
    x, b = (drawn(random, shape, dtype) for _ in range(2))
    given = ["x", "xs", "xz", "b", "bs", "bz"]
    inputs = ["ys", "yz", *given] if kind == "QLinearConcat" else [*given, "ys", "yz"]
    more = {"axis": 1} if kind == "QLinearConcat" else {}
    steps = arrays(dtype, x=X, b=Y, y=OUT)
    made = model([own(kind, inputs, **more)], [("x", shape)], arrays=steps | {"b": b})
    left, right = (numbers(a, shifted(s, dtype)) for a, s in ((x, X), (b, Y)))
    wanted = {
        "QLinearAdd": lambda: left + right,
        "QLinearMul": lambda: left * right,
        "QLinearConcat": lambda: np.concatenate([left, right], 1),
    }[kind]()
    check(loaded(made, dtype), device, x, whole(wanted, shifted(OUT, dtype), dtype))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("device", "zeros"), [("reference", True), ("reference", False), ("cpu", True)]
)
def test_of_one(zeros: bool, device: str, warm_cache: Any) -> None:
    """Activations and averages; without zeros, which are 0 then."""
    x = drawn(np.random.default_rng(1), (2, 18, 6, 9), "uint8")
    out = (np.float32(0.05), OUT[1] if zeros else 0)
    steps = arrays("uint8", x=X, y=out)
    inputs = ["x", "xs", "xz", "ys", "yz" if zeros else ""]
    given = numbers(x, X)
    pool = {"kernel_shape": [3, 3], "strides": [3, 3]}
    tiles = given.reshape(2, 18, 2, 3, 3, 3)
    for kind, more, wanted in (
        ("QLinearLeakyRelu", {"alpha": 0.25}, np.where(given < 0, given * np.float32(0.25), given)),
        ("QLinearSigmoid", {}, 1 / (1 + np.exp(-given))),
        ("QLinearGlobalAveragePool", {}, given.mean((2, 3), np.float64, keepdims=True)),
        ("QLinearAveragePool", pool, tiles.mean((3, 5), np.float64)),
    ):
        made = loaded(model([own(kind, inputs, **more)], [("x", x.shape)], arrays=steps))
        close = whole(np.asarray(wanted, np.float32), out, "uint8")
        found = run(made, device, x)
        assert found.dtype == close.dtype and found.shape == close.shape
        # Sums may be added up in another order, where a step begins.
        assert np.abs(found.astype(int) - close).max() <= (0 if kind == "QLinearLeakyRelu" else 1)
        assert (found == close).mean() > 0.98 and len(np.unique(found)) > 5


def run(made: Any, device: str, x: np.ndarray) -> np.ndarray:
    import minidnn as md

    return np.asarray(md.compile(load_onnx(made), device=device)(x))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("result", ["uint8", "float32"])
@pytest.mark.parametrize("turned", [False, True])
def test_gemm(turned: bool, result: str, device: str, warm_cache: Any) -> None:
    """A scale for each column, bytes or floats, and a bias for each column or row."""
    random = np.random.default_rng(2)
    x, b = drawn(random, (5, 37), "uint8"), drawn(random, (37, 20), "int8")
    bias = random.integers(-3000, 3000, (5, 1) if turned else (20,), np.int32)
    scales = random.random(20).astype(np.float32) / 50
    steps = arrays("uint8", x=X, y=(np.float32(9.5), 100))
    steps |= {
        "b": b.T.copy() if turned else b,
        "bs": scales,
        "bz": np.zeros(20, np.int8),
        "c": bias,
    }
    inputs = ["x", "xs", "xz", "b", "bs", "bz", "c", *(["ys", "yz"] if result == "uint8" else [])]
    node = own("QGemm", inputs, transB=int(turned), alpha=2.0)
    sums = (x.astype(np.int64) - X[1]) @ b.astype(np.int64) + bias
    factor = np.float32(2) * X[0] * scales
    made = model([node], [("x", x.shape)], arrays=steps)
    if result == "uint8":
        wanted = rescaled(sums, factor / np.float32(9.5), 100, "uint8")
    else:
        wanted = sums.astype(np.float32) * factor
    check(loaded(made, "uint8", result), device, x, wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_maxima_of_bytes(dtype: str, device: str, warm_cache: Any) -> None:
    """What is padded is no maximum."""
    x = drawn(np.random.default_rng(3), (2, 17, 7, 8), dtype)
    pool = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    made = typed(
        model([helper.make_node("MaxPool", ["x"], ["y"], **pool)], [("x", x.shape)]),
        x=dtype,
        y=dtype,
    )
    least = np.iinfo(dtype).min
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 1)), constant_values=least)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), (2, 3))[:, :, ::2]
    check(made, device, x, windows.max((4, 5)))


@pytest.mark.parametrize(
    ("kind", "inputs", "more", "error", "reason"),
    [
        ("QLinearAdd", ["x", "xs", "xz", "x", "two", "xz", "xs", "xz"], {}, UnsupportedError,
         r"its scale has shape \(2,\); valid is one number"),
        ("QLinearAdd", ["x", "xs", "bz", "x", "xs", "xz", "xs", "xz"], {}, GraphError,
         "its zero point is int8; valid is uint8"),
        ("QLinearMul", ["f", "xs", "xz", "x", "xs", "xz", "xs", "xz"], {}, UnsupportedError,
         "its operand 0 is float32 by a scale in float32; valid are int8 and uint8"),
        ("QLinearConcat", ["xs", "xz", "x", "xs"], {}, GraphError, "it has 4 inputs; valid are 2"),
        ("QLinearGlobalAveragePool", ["x", "xs", "xz", "xs", "xz"], {"channels_last": 1},
         UnsupportedError, "its channels are the last axis"),
        ("QGemm", ["x", "xs", "xz", "x", "xs", "xz"], {}, GraphError, "valid are two axes"),
        ("QLinearSoftmax", ["x", "xs", "xz", "xs", "xz"], {}, UnsupportedError,
         "no operator of minidnn does that"),
    ],
)  # fmt: skip
def test_what_is_refused(
    kind: str, inputs: list[str], more: Any, error: type[Exception], reason: str
) -> None:
    steps = arrays("uint8", x=X) | {"two": np.ones(2, np.float32), "bz": np.array(1, np.int8)}
    steps["f"] = np.ones((1, 4, 3, 3), np.float32)
    made = model([own(kind, inputs, **more)], [("x", (1, 4, 3, 3))], arrays=steps)
    with pytest.raises(error, match=reason):
        load_onnx(loaded(made))
