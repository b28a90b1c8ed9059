"""Quantizing operators are recognised by what they compute."""

from __future__ import annotations

import re

import numpy as np
import pytest

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, rint
from minidnn.graph.quantization import Steps, dequantization_of, quantization_of
from minidnn.graph.types import TensorType, saturated


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("zero", [0, 1, 3, 127])
@pytest.mark.parametrize("scale", [1.0, 3.0, 0.25, 127.0, float(np.float32(0.1))])
def test_operators_are_recognised(scale: float, zero: int, dtype: str) -> None:
    steps = Steps(scale, zero, dtype)
    assert quantization_of(steps.quantize()) == steps
    assert dequantization_of(steps.dequantize(), dtype) == steps
    assert quantization_of(steps.dequantize()) is None
    assert dequantization_of(steps.quantize(), dtype) is None
    assert dequantization_of(steps.dequantize(), "int32") is None


def test_others_are_not() -> None:
    x = argument(0)
    for body in (rint(x / 0.5) - 3.0, rint(x * 0.5) + 3.0, x / 0.5 + 3.0, rint(x / 0.5) + 3.5):
        assert quantization_of(ops.Formula(body, dtype="int8")) is None
    assert quantization_of(ops.Formula(rint(x / 0.5) + 3.0)) is None
    assert dequantization_of(ops.ReLU(), "int8") is None
    assert dequantization_of(ops.Formula((x + 3.0) * 0.5, compute="float32"), "int8") is None


@pytest.mark.parametrize(
    ("scale", "zero", "dtype", "text"),
    [
        (0.1, 0, "int8", "scale=0.1; valid is a float32 above 0"),
        (0.0, 0, "int8", "scale=0.0; valid is a float32 above 0"),
        (0.5, 128, "int8", "zero=128; valid is an int of int8"),
        (0.5, 0, "int32", "dtype='int32'; valid are int8, uint8"),
    ],
)
def test_errors(scale: float, zero: int, dtype: str, text: str) -> None:
    with pytest.raises(GraphError, match=re.escape(text)):
        Steps(scale, zero, dtype)


def test_bytes_saturate() -> None:
    x = np.array([np.nan, -np.inf, -300, -1.5, -0.5, 1.5, 254.9, 1e9, np.inf], np.float32)
    assert saturated("uint8", x).tolist() == [0, 0, 0, 0, 0, 1, 254, 255, 255]
    assert saturated("int8", x).tolist() == [-128, -128, -128, -1, 0, 1, 127, 127, 127]


BYTE, WEIGHT = TensorType((2, 3, 5, 5), "uint8"), TensorType((4, 3, 3, 3), "int8")


@pytest.mark.parametrize(
    ("op", "types", "text"),
    [
        (ops.Conv2d(zero=300), (BYTE, WEIGHT), "zero=300; valid is an int of uint8"),
        (
            ops.Conv2d(zero=1),
            (BYTE.with_shape(BYTE.shape), TensorType(WEIGHT.shape)),
            "operands have dtypes uint8, float32; valid is one of ",
        ),
        (
            ops.Conv2d(zero=1),
            (TensorType(BYTE.shape), TensorType(WEIGHT.shape)),
            "zero=1; valid is 0 where the input has fractions",
        ),
        (
            ops.Conv2d(),
            (BYTE, WEIGHT, TensorType((4,))),
            "bias is float32; valid is int32 beside uint8[2, 3, 5, 5]",
        ),
    ],
)
def test_contractions_of_what_does_not_fit(
    op: ops.Conv2d, types: tuple[TensorType, ...], text: str
) -> None:
    with pytest.raises(GraphError, match=re.escape(text)):
        op.infer(*types)


def test_contractions_of_whole_numbers() -> None:
    (type,) = ops.Conv2d(zero=7).infer(BYTE, WEIGHT, TensorType((4,), "int32"))
    assert type == TensorType((2, 4, 3, 3), "int32")
