"""Circular and hyperbolic functions and their inverses, over all of float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import minidnn as md
from minidnn.errors import DeviceError
from minidnn.frontends.onnx.convert import load_onnx
from minidnn.frontends.onnx.export import to_onnx
from tests.devices import unavailable

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Tan": np.tan,
}
LAST_PLACES = 3
RANDOM = np.random.default_rng(0)
NUMBERS = np.concatenate(
    [
        RANDOM.uniform(-1, 1, 3000),
        RANDOM.standard_normal(2000) * 30,
        *(sign * 10 ** RANDOM.uniform(-44, 38.5, 2000) for sign in (1, -1)),
        [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4028235e38],
        # Where functions overflow, begin, or are computed in another way.
        [88.5, 89.0, 89.4, 89.5, -89.4, 79.999, 80.001, 1.0000001, 0.99999994, 1e9, 1.0001e9],
    ]
).astype(np.float32)


def model_of(kind: str) -> Any:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [NUMBERS.size]) for n in "xy")
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"])], kind, [x], [y])
    opsets = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def devices() -> list[Any]:
    return [
        "reference",
        pytest.param("cpu", marks=pytest.mark.together),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_errors_are_a_few_last_places(kind: str, device: str) -> None:
    try:
        reason = unavailable(device)
    except DeviceError as error:
        reason = str(error)
    if reason is not None:
        pytest.skip(reason)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[kind](NUMBERS.astype(np.float64))
        rounded = exact.astype(np.float32)
    found = md.compile(model_of(kind), device=device)(NUMBERS)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(rounded))
    numbers = ~np.isnan(rounded)
    np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(rounded)[numbers])
    finite = np.isfinite(rounded)
    place = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    errors = np.abs(found[finite] - exact[finite]) / place
    worst = int(errors.argmax())
    assert errors[worst] <= LAST_PLACES, f"{errors[worst]} at {NUMBERS[finite][worst]!r}"


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_they_can_be_written_again(kind: str) -> None:
    x = RANDOM.uniform(1, 1.5, NUMBERS.size).astype(np.float32)
    x = x - np.float32(0.75) if kind in ("Acos", "Asin", "Atanh") else x
    data = to_onnx(load_onnx(model_of(kind))).SerializeToString()
    (found,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(found, FUNCTIONS[kind](x.astype(np.float64)), 2e-6, 2e-6)
