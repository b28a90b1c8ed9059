"""What CuDNNError says, keeps and survives."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from minidnn import cudnn
from minidnn.cudnn.compat import batch_norm
from minidnn.cudnn.enums import MathType, Status
from minidnn.cudnn.errors import CuDNNError, check, status_name
from minidnn.cudnn.tensor import TensorDescriptor
from minidnn.cudnn.transform import TensorTransformDescriptor, transform_ex
from minidnn.errors import DeviceError, MiniDNNError


def test_text_of_a_failing_convolution(fake: SimpleNamespace) -> None:
    """Function, status, cuDNN's words, shapes, dtypes, layouts, geometry, math type."""
    x = fake.cupy.empty((2, 8, 9, 4), "float16").transpose(0, 3, 1, 2)
    w = fake.cupy.empty((6, 3, 3, 2), "float16").transpose(0, 3, 1, 2)
    fake.dll.status["cudnnConvolutionForward"] = 5000
    with pytest.raises(CuDNNError) as caught:
        cudnn.convolution.forward(
            x, w, padding=(1, 0), stride=2, dilation=(1, 2), groups=2,
            math=MathType.CUDNN_FMA_MATH,
        )  # fmt: skip
    text = str(caught.value)
    for part in (
        "CUDNN_STATUS_EXECUTION_FAILED (5000) in cudnnConvolutionForward: the fake says no",
        "x: shape=(2, 4, 8, 9), dtype=CUDNN_DATA_HALF, strides=(288, 1, 36, 4), "
        "layout=CUDNN_TENSOR_NHWC",
        "w: shape=(6, 2, 3, 3), dtype=CUDNN_DATA_HALF, layout=CUDNN_TENSOR_NHWC",
        "y: shape=(2, 6, 4, 3)",
        "padding: (1, 0)",
        "stride: (2, 2)",
        "dilation: (1, 2)",
        "groups: 2",
        "math type: CUDNN_FMA_MATH",
        "algorithm: CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM",
    ):
        assert part in text, text


def test_kinds_and_attributes() -> None:
    error = CuDNNError(3000, "cudnnX", "because", {"a": 1})
    assert isinstance(error, DeviceError | MiniDNNError) and isinstance(error, RuntimeError)
    assert (error.status, error.function, error.last_error) == (3000, "cudnnX", "because")
    error.add_info("more")
    error.add_infos(["and more"])
    assert str(error).endswith("because\n  a: 1\n  more\n  and more")


def test_pickling_keeps_the_text(fake: SimpleNamespace) -> None:
    error = CuDNNError(2000, "cudnnX", "because", {"x": fake.cupy.empty((2, 3))})
    error.add_info("line")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.args == error.args
    assert "x: shape=(2, 3), dtype=float32, strides=(3, 1), device=0" in str(again)


def test_unknown_status_and_success(fake: SimpleNamespace) -> None:
    assert status_name(77) == "unknown cuDNN status 77"
    assert status_name(Status.CUDNN_STATUS_INVALID_VALUE) == "CUDNN_STATUS_INVALID_VALUE"
    check(0, "cudnnX")
    with pytest.raises(CuDNNError, match="made late: 3"):
        check(2000, "cudnnX", lambda: {"made late": 3})


def test_one_family_of_errors_in_both_faces() -> None:
    assert cudnn.constants.CuDNNError is cudnn.CuDNNError is CuDNNError


def test_a_transform_that_fails_tells_what_its_descriptors_hold(fake: SimpleNamespace) -> None:
    """Descriptors have shapes and dtypes as arrays do, but no bytes."""
    tensor = TensorDescriptor.strided("float32", (2, 3, 4, 5), (60, 20, 5, 1))
    array = fake.cupy.empty((200,))
    fake.dll.status["cudnnTransformTensorEx"] = 3000
    with pytest.raises(CuDNNError, match=r"cudnnTransformTensorEx: the fake says no\n  x: Tensor"):
        transform_ex(TensorTransformDescriptor(), array, tensor, array, tensor)


@pytest.mark.parametrize(
    "name",
    [
        "batch_normalization_forward_training",
        "batch_normalization_forward_training_ex",
        "batch_normalization_backward",
    ],
)
def test_a_warning_of_overflow_names_the_line_of_the_call(
    fake: SimpleNamespace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflowed(function: str, *arguments: Any, **context: Any) -> None:
        if function == "cudnnQueryRuntimeError":
            arguments[0]._obj.value = 1

    monkeypatch.setattr(batch_norm, "call", overflowed)
    x, numbers = fake.cupy.empty((2, 3, 4, 4)), [fake.cupy.empty(3) for _ in range(4)]
    last = (1e-5, True, batch_norm.PERSISTENT, True)
    call: Any = getattr(batch_norm, name)
    with pytest.warns(RuntimeWarning, match="A numerical overflow might have happened") as caught:
        if name == "batch_normalization_backward":
            call(x, numbers[0], x, *numbers[1:3], *last)
        else:
            call(x, *numbers, None, None, 1e-5, 0.9, *last[1:])
    assert [warning.filename for warning in caught] == [__file__]
