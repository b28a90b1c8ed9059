"""Descriptors own what they hold: each creation has its destruction."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from minidnn import cudnn
from minidnn.cudnn import enums
from minidnn.cudnn.activation import ActivationDescriptor
from minidnn.cudnn.convolution import ConvolutionDescriptor
from minidnn.cudnn.descriptor import Memo, created_descriptors, live_descriptors
from minidnn.cudnn.dropout import DropoutDescriptor
from minidnn.cudnn.errors import ArgumentError, CuDNNError
from minidnn.cudnn.lrn import LRNDescriptor
from minidnn.cudnn.op_tensor import OpTensorDescriptor
from minidnn.cudnn.pooling import PoolingDescriptor
from minidnn.cudnn.reduction import ReduceTensorDescriptor
from minidnn.cudnn.tensor import FilterDescriptor, TensorDescriptor
from minidnn.cudnn.transform import TensorTransformDescriptor

KINDS = [
    ActivationDescriptor, ConvolutionDescriptor, DropoutDescriptor, FilterDescriptor,
    LRNDescriptor, OpTensorDescriptor, PoolingDescriptor, ReduceTensorDescriptor,
    TensorDescriptor, TensorTransformDescriptor,
]  # fmt: skip
NHWC = enums.TensorFormat.CUDNN_TENSOR_NHWC


@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_uses(fake: SimpleNamespace, kind: Any) -> None:
    before = live_descriptors().get(kind.KIND, 0)
    made = created_descriptors().get(kind.KIND, 0)
    for number in range(10_000):
        if number % 3 == 0:
            with kind() as descriptor:
                assert descriptor.value in fake.dll.live
        elif number % 3 == 1:
            kind().close()
        else:
            kind()  # dropped at once
    assert not fake.dll.live
    assert live_descriptors()[kind.KIND] == before
    assert created_descriptors()[kind.KIND] == made + 10_000
    assert fake.dll.created[f"cudnnCreate{kind.KIND}Descriptor"] == 10_000


def test_ten_thousand_calls_make_no_descriptors(fake: SimpleNamespace) -> None:
    x, w, y = (fake.cupy.empty(s) for s in ((2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 6, 6)))
    cudnn.convolution.forward(x, w, y)
    created = created_descriptors()
    for _ in range(10_000):
        cudnn.convolution.forward(x, w, y)
    assert created_descriptors() == created


def test_many_shapes_do_not_pile_up(fake: SimpleNamespace) -> None:
    for extent in range(1, 9_000):
        cudnn.op_tensor.scale(fake.cupy.empty((1, 1, 1, extent)), 2.0)
    assert live_descriptors()["Tensor"] <= 2 * 4096


def test_closed_twice_and_used_afterwards(fake: SimpleNamespace) -> None:
    descriptor = TensorDescriptor()
    assert not descriptor.closed
    descriptor.close()
    descriptor.close()
    assert descriptor.closed
    with pytest.raises(ArgumentError, match="this TensorDescriptor is closed"):
        _ = descriptor.value


def test_a_failing_setter_frees_and_explains(fake: SimpleNamespace) -> None:
    fake.dll.status["cudnnSetTensorNdDescriptor"] = 2000
    with pytest.raises(CuDNNError) as caught:
        TensorDescriptor.strided("float16", (2, 3, 4, 5), (60, 20, 5, 1))
    text = str(caught.value)
    assert "CUDNN_STATUS_BAD_PARAM (2000) in cudnnSetTensorNdDescriptor" in text
    assert "shape: (2, 3, 4, 5)" in text and "dtype: CUDNN_DATA_HALF" in text
    del caught
    gc.collect()
    assert not fake.dll.live


def test_a_failing_creation(fake: SimpleNamespace) -> None:
    fake.dll.status["cudnnCreateFilterDescriptor"] = 4003
    with pytest.raises(CuDNNError, match="HOST_ALLOCATION_FAILED"):
        FilterDescriptor()


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: TensorDescriptor().set_4d_ex("float32", (1, 2), (2, 1)), "4 extents"),
        (lambda: TensorDescriptor().set_nd("float32", (1, 2), (1,)), "one length"),
        (lambda: TensorTransformDescriptor.of(NHWC, (0, 0, 0, 0), (0, 0)), "one number per"),
        (lambda: TensorDescriptor.packed("complex64", (1, 2, 3, 4), NHWC), "complex64"),
    ],
)
def test_setters_check_their_arguments(fake: SimpleNamespace, make: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        make()


def test_memo_forgets_by_generations() -> None:
    memo: Memo[str] = Memo(3)
    for name in "abc":
        memo.put(name, name.upper())
    memo.put("d", "D")  # the first three are the older generation now
    assert memo.get("a") == "A"  # and a is young again
    memo.put("e", "E")
    memo.put("f", "F")  # b and c are gone, a stays
    assert memo.get("b") is None and memo.get("c") is None
    assert memo.get("a") == "A" and memo.get("f") == "F"
    assert len(memo) <= 6
    memo.clear()
    assert len(memo) == 0 and memo.get("a") is None
