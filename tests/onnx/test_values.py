"""Values at the edges of what operators take: infinities, NaN, extremes, nothing at all.

What is expected is what the specification says; where it leaves a choice, what ONNX Runtime and
ONNX's reference have both taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import minidnn as md
from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.convert import load_onnx
from minidnn.frontends.onnx.export import to_onnx
from minidnn.frontends.onnx.operators import CONVERTERS
from minidnn.frontends.onnx.tensors import DTYPES
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate

from .models import node

INF, NAN = float("inf"), float("nan")
_TYPES = {dtype: number for number, dtype in DTYPES.items()}


def floats(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


def wholes(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.int64)


def one_node(
    kind: str,
    inputs: Sequence[np.ndarray],
    known: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
    outputs: str = "y",
    operands: str | None = None,
    **attributes: Any,
) -> Any:
    """A model of one node that reads inputs ``x0``, ``x1``, ... and then what is known."""
    names = [f"x{i}" for i in range(len(inputs))]
    made = node(kind, operands or " ".join([*names, *(known or {})]), outputs, **attributes)
    graph = helper.make_graph(
        [made],
        "test",
        [
            helper.make_tensor_value_info(name, _TYPES[str(array.dtype)], array.shape)
            for name, array in zip(names, inputs, strict=True)
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs.split()],
        [numpy_helper.from_array(array, name) for name, array in (known or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    return model


def results(kind: str, inputs: Sequence[np.ndarray], **given: Any) -> list[np.ndarray]:
    return list(evaluate(load_onnx(one_node(kind, inputs, **given)), inputs))


def gives(expected: np.ndarray, kind: str, *inputs: np.ndarray, **given: Any) -> None:
    (found,) = results(kind, inputs, **given)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_parts_without_elements_are_joined(dtype: str) -> None:
    parts = [np.zeros((2, size, 0), dtype) for size in (1, 3, 2)]
    gives(np.zeros((2, 6, 0), dtype), "Concat", *parts, axis=1)
    gives(np.zeros((2, 0), dtype), "Concat", *(np.zeros((2, 0), dtype),) * 2, axis=-1)


def test_padding_with_truth_values() -> None:
    for value in (True, False):
        known = {"pads": wholes(1, 2), "value": np.array(value)}
        expected = np.array([value, True, False, value, value])
        gives(expected, "Pad", np.array([True, False]), known=known)
        found = md.compile(one_node("Pad", [np.array([True, False])], known), device="reference")
        np.testing.assert_array_equal(found(np.array([True, False])), expected)


def test_the_place_of_the_smallest_number_of_all() -> None:
    for dtype in ("int64", "int32"):
        least = np.iinfo(dtype).min
        x = np.array([0, least, least + 1, least], dtype)
        gives(wholes(1), "ArgMin", x)
        gives(wholes(3), "ArgMin", x, select_last_index=1)
    gives(wholes(2), "ArgMin", floats(1, -3, -INF, INF))


def test_logarithms_of_sums_of_infinities() -> None:
    x = floats([-INF, -INF], [INF, 1], [-INF, 2], [INF, INF], [NAN, INF])
    gives(floats(-INF, INF, 2, INF, NAN), "ReduceLogSumExp", x, opset=13, axes=[1], keepdims=0)
    gives(floats([-INF, INF]), "ReduceLogSumExp", floats([-INF, -INF], [INF, 1]).T.copy(),
          opset=13, axes=[0])  # fmt: skip


def test_what_is_nan_is_beyond_no_threshold() -> None:
    gives(floats(0, INF, 0, 2), "ThresholdedRelu", floats(NAN, INF, 1, 2))
    gives(floats(0, INF, -INF, 0, 2), "Shrink", floats(NAN, INF, -INF, 0.25, 2))


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_whole_numbers_shrink_by_fractions(dtype: str) -> None:
    x = np.arange(-3, 4).astype(dtype)
    expected = np.array([-2, -1, 0, 0, 0, 1, 2], dtype)
    gives(expected, "Shrink", x, lambd=1.5, bias=0.5)
    gives(np.array([-2, 0, 0, 0, 0, 0, 2], dtype), "Shrink", x, lambd=2.0, bias=1.0)


def test_infinities_are_clipped_before_opset_11() -> None:
    largest = float(np.finfo(np.float32).max)
    x = floats(-INF, -1, NAN, INF)
    gives(floats(-largest, -1, NAN, largest), "Clip", x, opset=10)
    gives(floats(0, 0, NAN, largest), "Clip", x, opset=6, min=0.0)
    gives(x, "Clip", x, opset=11)


def test_places_of_maxima_that_are_minus_infinity_lie_in_the_input() -> None:
    x = np.full((1, 2, 3, 3), -INF, np.float32)
    given: dict[str, Any] = {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1], "outputs": "y places"}
    values, places = results("MaxPool", [x], **given)
    assert (values == -INF).all()
    rows = np.array([[0, 0, 1, 2], [0, 0, 1, 2], [3, 3, 4, 5], [6, 6, 7, 8]])
    np.testing.assert_array_equal(places[0], [rows, rows + 9])


def test_an_axis_beyond_the_input_is_told() -> None:
    for kind in ("Softmax", "LogSoftmax", "Hardmax"):
        with pytest.raises(GraphError, match="axis=1; valid are -1 to 0"):
            results(kind, [floats(1, 2)], opset=12)
        gives(np.zeros((2, 0), np.float32), kind, np.zeros((2, 0), np.float32), opset=13)


def test_a_larger_output_than_windows_reach_ends_in_zeros() -> None:
    known = {"w": np.ones((1, 1, 1), np.float32)}
    x = floats([[1, 2]])
    given: dict[str, Any] = {"known": known, "strides": [4]}
    gives(floats([[1, 0, 0, 0, 2, 0, 0, 0]]), "ConvTranspose", x, output_shape=[8], **given)
    gives(floats([[1, 0, 0, 0, 2]]), "ConvTranspose", x, **given)


def resized(
    x: np.ndarray, scale: float, how: str, *roi: float, mode: str = "nearest"
) -> np.ndarray:
    known = {"roi": floats(*roi), "scales": floats(scale)}
    given: dict[str, Any] = {"coordinate_transformation_mode": how, "mode": mode}
    (found,) = results("Resize", [x], known=known, opset=19, **given)
    return found


def test_places_between_two_inputs() -> None:
    x = np.arange(6, dtype=np.float32)
    # One output lies at the first input, even if the scale makes a little more than one.
    assert resized(x[:3], 1 / 3, "pytorch_half_pixel", mode="linear") == 0
    # 0.5, 1.83, 3.17, 4.5: between two, the lower is taken.
    np.testing.assert_array_equal(resized(x, 0.75, "half_pixel_symmetric"), [0, 2, 3, 4])
    # From 0.5 in steps of 0.5.
    found = resized(x, 1.75, "tf_crop_and_resize", 0.1, 1.0)
    np.testing.assert_array_equal(found, [0, 1, 1, 2, 2, 3, 3, 4, 4, 5])
    # The middle of the region.
    assert resized(x, 0.3, "tf_crop_and_resize", 0.2, 0.6, mode="linear") == 2


def scaled_down(size: int, scale: float, **given: Any) -> tuple[Any, np.ndarray]:
    """A model that resizes one axis without aliasing, and an input for it."""
    x = np.random.default_rng(size).standard_normal(size, np.float32)
    known = {"roi": floats(), "scales": floats(scale)}
    return one_node("Resize", [x], known, opset=19, antialias=1, **given), x


@pytest.mark.parametrize("how", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("scale", [1 / 40, 1 / 32.5, 1 / 32, 1 / 31.5, 0.3])
def test_all_inputs_of_a_wide_filter_count(scale: float, how: str) -> None:
    kinds: list[dict[str, Any]] = [{"mode": "linear"}, {"mode": "cubic", "cubic_coeff_a": 0.0}]
    for kind in kinds:
        model, x = scaled_down(131, scale, coordinate_transformation_mode=how, **kind)
        try:
            graph = load_onnx(model)
        except UnsupportedError as error:
            assert scale < 1 / 32 and "weights over 64 inputs" in str(error)
            continue
        assert scale > 1 / 33 or how == "asymmetric"
        (expected,) = ReferenceEvaluator(model).run(None, {"x0": x})
        np.testing.assert_allclose(evaluate(graph, [x])[0], expected, atol=1e-6)


def test_filters_that_are_too_wide_are_refused() -> None:
    # All of the first inputs that a cubic filter with a coefficient of 0 reaches weigh 0.
    for size, scale, kind in ((40, 1 / 40, "cubic"), (65, 2 / 65, "linear"), (1001, 1e-3, "cubic")):
        model, _ = scaled_down(size, scale, mode=kind, cubic_coeff_a=0.0)
        with pytest.raises(UnsupportedError, match=r"axis 0, whose scale is .* over 64 inputs"):
            load_onnx(model)


def test_outputs_that_weight_no_input() -> None:
    x = np.arange(10, dtype=np.float32)
    given: dict[str, Any] = {"mode": "linear", "exclude_outside": 1, "opset": 19}
    known = {"roi": floats(-9, 0), "scales": floats(0.2)}
    how = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    gives(floats(7, 0), "Resize", x, known=known, **how, **given)
    # Sizes 1.5 rounded up: the last of two corners is at 9 / (1.5 - 1).
    given |= {"keep_aspect_ratio_policy": "not_larger", "operands": "x0 _ _ sizes"}
    known = {"sizes": wholes(3, 3)}
    x = np.zeros((20, 10), np.float32)
    with pytest.raises(UnsupportedError, match="the weights of an output of axis 1 sum to 0"):
        results("Resize", [x], known=known, coordinate_transformation_mode="align_corners", **given)


def test_whole_numbers_are_not_weighted() -> None:
    known = {"scales": floats(2)}
    x = wholes(1, 2)
    gives(wholes(1, 1, 2, 2), "Resize", x, known=known, operands="x0 _ scales")
    with pytest.raises(UnsupportedError, match="its operand is int64, with mode='linear'"):
        results("Resize", [x], known=known, operands="x0 _ scales", mode="linear")


@pytest.mark.parametrize("before", DTYPES.values())
def test_casts(before: str) -> None:
    """Fractions are cut off, and all but 0 is true; what an operator's note says is taken."""
    x = np.array([0, 0.4, 1, 2.5, 100]).astype(before)
    integers = {"int8", "uint8", "int32", "int64"}
    for after, number in _TYPES.items():
        assert after in CONVERTERS["Cast"].note
        if after in ("int8", "uint8") and before in integers - {after}:
            with pytest.raises(UnsupportedError, match=f"it makes {after} of {before}, which wo"):
                results("Cast", [x], to=number)
        else:
            gives(x.astype(after), "Cast", x, to=number)


def run(model: Any, inputs: Sequence[np.ndarray]) -> Any:
    """What ONNX Runtime makes of a model with one output."""
    data = model.SerializeToString()
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [value.name for value in model.graph.input]
    (found,) = session.run(None, dict(zip(names, inputs, strict=True)))
    return found


def test_rectified_whole_numbers_are_written_as_onnx_runtime_has_them() -> None:
    x = wholes(-(2**62), -1, 0, 2**62 + 1)
    found = run(to_onnx(load_onnx(one_node("Relu", [x]))), [x])
    np.testing.assert_array_equal(found, [0, 0, 0, 2**62 + 1])


def test_rests_are_written_to_the_last_bit() -> None:
    random = np.random.default_rng(0)
    b = random.standard_normal(10_000).astype(np.float32)
    a = (random.standard_normal(10_000) * 100).astype(np.float32)
    graph = load_onnx(one_node("Mod", [a, b], fmod=1))
    np.testing.assert_array_equal(evaluate(graph, [a, b])[0], np.fmod(a, b))
    np.testing.assert_array_equal(run(to_onnx(graph), [a, b]), np.fmod(a, b))


def test_normalized_batches_of_single_numbers() -> None:
    """The specification takes one channel then."""
    vectors = {name: floats(number) for name, number in zip("abcd", (2, 1, 3, 4), strict=True)}
    gives(floats(-1, -3), "BatchNormalization", floats(1, -1), known=vectors, epsilon=0.0)


def test_what_would_make_the_result_larger_is_told() -> None:
    x = floats([1, 2], [3, 4])
    for wrong in (np.ones((1, 2, 2), np.float32), np.ones(3, np.float32)):
        with pytest.raises(GraphError, match="does not broadcast to the input's"):
            results("LayerNormalization", [x], known={"scale": wrong})
        with pytest.raises(GraphError, match=r"C has shape .*, which does not broadcast to"):
            results("Gemm", [x, x], known={"c": wrong})
    with pytest.raises(GraphError, match="it has split and num_outputs; valid is one of them"):
        results("Split", [x], known={"split": wholes(2)}, num_outputs=1)


def test_statistics_of_layers_are_in_float32() -> None:
    x = np.array([[1, 3]], np.float64)
    known = {"scale": np.ones(2)}
    out, mean, inverse = results("LayerNormalization", [x], known=known, outputs="y mean inverse")
    assert [str(each.dtype) for each in (out, mean, inverse)] == ["float64", "float32", "float32"]
    assert (mean[0, 0], inverse[0, 0]) == (2.0, pytest.approx(1.0, abs=1e-5))


@pytest.mark.parametrize("stride", [2**31, 2**62])
def test_strides_beyond_the_input_leave_one_window(stride: int) -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    given: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [stride, 2]}
    for ceil in (0, 1):
        values, places = results("MaxPool", [x], outputs="y i", ceil_mode=ceil, **given)
        np.testing.assert_array_equal(values, floats([[[5, 7]]]))
        np.testing.assert_array_equal(places, wholes([[[5, 7]]]))
    # In ceil mode, a window that is longer than the input is one, too, if a stride is.
    line = floats([[2, 4]])
    given = {"kernel_shape": [4], "strides": [stride], "ceil_mode": 1}
    gives(floats([[3]]), "AveragePool", line, **given)
    known = {"w": np.ones((1, 1, 2, 2), np.float32)}
    gives(floats([[[10, 18]]]), "Conv", x, known=known, strides=[stride, 2])
    (windows,) = [
        each.op for each in load_onnx(one_node("Conv", [x], known, strides=[stride, 1])).nodes
    ]
    assert isinstance(windows, ops.Conv2d) and windows.stride == (4, 1)


def test_factors_beyond_whole_numbers() -> None:
    x = wholes([1, 2], [3, 4])
    with pytest.raises(UnsupportedError, match=r"its operands are int64 with alpha=3\.0+.*e\+38"):
        results("Gemm", [x, x], alpha=3e38)
    gives(wholes(0, 0), "Shrink", wholes(-1, 5), lambd=3e38)


def test_ranges_say_what_they_are_computed_in() -> None:
    """As they may since opset 27."""
    known = {"start": floats(1)[0], "limit": floats(2)[0], "delta": floats(0.25)[0]}
    model = one_node("Range", [], known={k: np.array(v) for k, v in known.items()}, stash_type=1)
    (found,) = evaluate(load_onnx(model), [])
    np.testing.assert_array_equal(found, floats(1, 1.25, 1.5, 1.75))
