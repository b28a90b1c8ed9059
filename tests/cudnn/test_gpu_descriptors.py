"""Descriptors of the real library give back what was put in.  (cuDNN itself wants no GPU here.)"""

from __future__ import annotations

import pytest

from minidnn.cudnn import enums, library
from minidnn.cudnn.activation import ActivationDescriptor, ActivationInfo
from minidnn.cudnn.convolution import ConvolutionDescriptor, ConvolutionInfo
from minidnn.cudnn.descriptor import created_descriptors, live_descriptors
from minidnn.cudnn.errors import CuDNNError
from minidnn.cudnn.lrn import LRNDescriptor, LRNInfo
from minidnn.cudnn.op_tensor import OpTensorDescriptor, OpTensorInfo
from minidnn.cudnn.pooling import PoolingDescriptor, PoolingInfo
from minidnn.cudnn.reduction import ReduceTensorDescriptor, ReduceTensorInfo
from minidnn.cudnn.tensor import FilterDescriptor, FilterInfo, TensorDescriptor, TensorInfo
from minidnn.cudnn.transform import TensorTransformDescriptor, TensorTransformInfo

pytestmark = pytest.mark.gpu

D, F = enums.DataType, enums.TensorFormat
NCHW, NHWC, VECT = F.CUDNN_TENSOR_NCHW, F.CUDNN_TENSOR_NHWC, F.CUDNN_TENSOR_NCHW_VECT_C
FLOAT, INT8X4 = D.CUDNN_DATA_FLOAT, D.CUDNN_DATA_INT8x4
KEEP = enums.NanPropagation.CUDNN_PROPAGATE_NAN
DROP = enums.NanPropagation.CUDNN_NOT_PROPAGATE_NAN
BYTES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "uint8": 1, "int32": 4,
}  # fmt: skip


@pytest.mark.parametrize("dtype", list(BYTES))
def test_tensor(dtype: str) -> None:
    shape, strides = (2, 3, 4, 5), (60, 1, 15, 3)
    with TensorDescriptor.strided(dtype, shape, strides) as tensor:
        assert tensor.get()[1:] == tensor.get_4d()[1:] == (shape, strides)
        assert tensor.size_in_bytes == 120 * BYTES[dtype]
    with TensorDescriptor.packed(dtype, shape, NHWC) as tensor:
        assert tensor.get()[1:] == (shape, strides)
    with TensorDescriptor() as tensor:
        tensor.set_4d(NHWC, dtype, *shape)
        assert tensor.get()[1:] == (shape, strides)
        tensor.set_4d_ex(dtype, shape, (200, 50, 10, 2))
        assert tensor.get()[1:] == (shape, (200, 50, 10, 2))
        tensor.set_nd(dtype, (2, 3, 4, 5, 6), (360, 120, 30, 6, 1))
        assert tensor.get().shape == (2, 3, 4, 5, 6)


def test_vectors_of_channels() -> None:
    with TensorDescriptor.packed(INT8X4, (2, 8, 4, 5), VECT) as tensor:
        assert tensor.get()[:2] == (INT8X4, (2, 8, 4, 5))
        assert tensor.size_in_bytes == 320


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
@pytest.mark.parametrize("layout", [NCHW, NHWC])
def test_filter(dtype: str, layout: enums.TensorFormat) -> None:
    with FilterDescriptor.packed(dtype, (6, 3, 4, 5), layout) as weights:
        assert weights.get() == weights.get_4d()
        assert weights.get()[1:] == (layout, (6, 3, 4, 5))
        assert weights.size_in_bytes == 360 * BYTES[dtype]
        weights.set_4d(dtype, layout, 1, 2, 3, 4)
        assert weights.get().shape == (1, 2, 3, 4)
    with FilterDescriptor.packed(dtype, (6, 3, 2, 4, 5), layout) as weights:
        assert weights.get() == FilterInfo(weights.get().dtype, layout, (6, 3, 2, 4, 5))


def test_convolution() -> None:
    mode = enums.ConvolutionMode.CUDNN_CONVOLUTION
    math = enums.MathType.CUDNN_FMA_MATH
    geometry = ((1, 2), (3, 4), (5, 6))
    with ConvolutionDescriptor.of(*geometry, 7, "float32", math, mode) as conv:
        assert conv.get() == conv.get_2d() == ConvolutionInfo(*geometry, 7, mode, FLOAT, math)
    deep = ((1, 2, 0), (3, 4, 1), (1, 2, 1))
    with (
        ConvolutionDescriptor.of(*deep) as conv,
        TensorDescriptor.packed("float32", (2, 4, 9, 9, 9), NCHW) as x,
        FilterDescriptor.packed("float32", (6, 4, 3, 3, 3), NCHW) as w,
    ):
        assert conv.get()[:3] == deep
        assert conv.output_shape(x, w, 5) == (2, 6, 3, 3, 7)


def test_activation() -> None:
    for mode in enums.ActivationMode:
        with ActivationDescriptor.of(mode, 0.5, DROP) as activation:
            assert activation.get() == ActivationInfo(mode, DROP, 0.5)
    with ActivationDescriptor.of(enums.ActivationMode.CUDNN_ACTIVATION_SWISH, 1.5) as swish:
        assert swish.get_swish_beta() == 1.5


def test_pooling() -> None:
    for mode in enums.PoolingMode:
        with PoolingDescriptor.of(mode, (2, 3), (1, 0), (4, 5), DROP) as pool:
            assert pool.get() == pool.get_2d()
            assert pool.get() == PoolingInfo(mode, DROP, (2, 3), (1, 0), (4, 5))
    mode = enums.PoolingMode.CUDNN_POOLING_MAX
    with (
        PoolingDescriptor.of(mode, (2, 2, 2), (0, 0, 0), (2, 2, 2)) as pool,
        TensorDescriptor.packed("float32", (2, 4, 9, 9, 9), NCHW) as x,
    ):
        assert pool.output_shape(x, 5) == (2, 4, 4, 4, 4)


def test_the_others() -> None:
    with LRNDescriptor.of(3, 0.25, 0.5, 1.5) as lrn:
        assert lrn.get() == LRNInfo(3, 0.25, 0.5, 1.5)
    add = enums.OpTensorOp.CUDNN_OP_TENSOR_ADD
    with OpTensorDescriptor.of(add, "float32", DROP) as op:
        assert op.get() == OpTensorInfo(add, FLOAT, DROP)
    largest = enums.ReduceTensorOp.CUDNN_REDUCE_TENSOR_MAX
    flat = enums.ReduceTensorIndices.CUDNN_REDUCE_TENSOR_FLATTENED_INDICES
    narrow = enums.IndicesType.CUDNN_32BIT_INDICES
    with ReduceTensorDescriptor.of(largest, "float32", KEEP, flat, narrow) as reduce:
        assert reduce.get() == ReduceTensorInfo(largest, FLOAT, KEEP, flat, narrow)
    fold = enums.FoldingDirection.CUDNN_TRANSFORM_FOLD
    with TensorTransformDescriptor.of(NHWC, (0, 0, 1, 2), (0, 0, 3, 4), (2, 1)) as transform:
        found = transform.get(4)
        assert found == TensorTransformInfo(NHWC, (0, 0, 1, 2), (0, 0, 3, 4), (2, 1), fold)


def test_books_over_ten_thousand_uses() -> None:
    TensorDescriptor().close()
    live, created = live_descriptors()["Tensor"], created_descriptors()["Tensor"]
    for _ in range(10_000):
        with TensorDescriptor.packed("float32", (1, 2, 3, 4), NCHW):
            pass
    assert live_descriptors()["Tensor"] == live
    assert created_descriptors()["Tensor"] == created + 10_000


def test_an_error_has_cudnns_words() -> None:
    with pytest.raises(CuDNNError) as caught:
        TensorDescriptor.strided("float32", (2, 0, 4, 5), (60, 20, 5, 1))
    assert "BAD_PARAM" in str(caught.value) and caught.value.last_error
    assert library.load().version >= 90000
    assert TensorInfo(FLOAT, (1,), (1,)).shape == (1,)
