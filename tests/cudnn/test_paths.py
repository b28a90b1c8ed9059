"""Every function of the binding on fakes: which C functions it calls, and that it cleans up."""

from __future__ import annotations

import ctypes
import math
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minidnn import cudnn
from minidnn.cudnn import enums
from minidnn.cudnn.errors import ArgumentError, CuDNNError, DTypeError

RELU = enums.ActivationMode.CUDNN_ACTIVATION_RELU
IDENTITY = enums.ActivationMode.CUDNN_ACTIVATION_IDENTITY
MAX = enums.ReduceTensorOp.CUDNN_REDUCE_TENSOR_MAX
ADD = enums.OpTensorOp.CUDNN_OP_TENSOR_ADD


@pytest.fixture
def arrays(fake: SimpleNamespace) -> SimpleNamespace:
    empty = fake.cupy.empty
    return SimpleNamespace(
        x=empty((2, 4, 8, 8)), w=empty((6, 4, 3, 3)), y=empty((2, 6, 8, 8)), b=empty((6,)),
        c=empty((4,)), xl=empty((2, 8, 8, 4)), wl=empty((6, 3, 3, 4)), yl=empty((2, 8, 8, 6)),
        half=empty((2, 4, 4, 4)),
    )  # fmt: skip


def test_own_functions_call_theirs(fake: SimpleNamespace, arrays: SimpleNamespace) -> None:
    a = arrays
    x, w, y, c = a.x, a.w, a.y, a.c
    with cudnn.lrn.LRNDescriptor.of() as lrn, cudnn.dropout.Dropout(0.5) as drop:
        _, reserve = drop.forward(x)
        trained = cudnn.batch_norm.forward_training(x, c, c)
        calls: dict[str, Any] = {
            "cudnnConvolutionForward": lambda: cudnn.convolution.forward(x, w, padding=1),
            "cudnnConvolutionBackwardData": lambda: cudnn.convolution.backward_data(
                w, y, x_shape=x.shape, padding=1
            ),
            "cudnnConvolutionBackwardFilter": lambda: cudnn.convolution.backward_filter(
                x, y, w_shape=w.shape, padding=1
            ),
            "cudnnConvolutionBackwardBias": lambda: cudnn.convolution.backward_bias(y),
            "cudnnConvolutionBiasActivationForward": lambda: (
                cudnn.convolution.bias_activation_forward(x, w, a.b, padding=1)
            ),
            "cudnnActivationForward": lambda: cudnn.activation.forward(x, mode=RELU),
            "cudnnActivationBackward": lambda: cudnn.activation.backward(x, x, x, mode=RELU),
            "cudnnPoolingForward": lambda: cudnn.pooling.forward(x, window=2),
            "cudnnPoolingBackward": lambda: cudnn.pooling.backward(a.half, a.half, x, window=2),
            "cudnnSoftmaxForward": lambda: cudnn.softmax.forward(x),
            "cudnnSoftmaxBackward": lambda: cudnn.softmax.backward(x, x),
            "cudnnDropoutForward": lambda: drop.forward(x),
            "cudnnDropoutBackward": lambda: drop.backward(x, reserve),
            "cudnnRestoreDropoutDescriptor": lambda: drop.restore(drop.save()),
            "cudnnBatchNormalizationForwardTrainingEx": lambda: cudnn.batch_norm.forward_training(
                x, c, c, running_mean=c, running_variance=c
            ),
            "cudnnBatchNormalizationBackwardEx": lambda: cudnn.batch_norm.backward(
                x, x, c, trained
            ),
            "cudnnBatchNormalizationForwardInference": lambda: cudnn.batch_norm.forward_inference(
                x, c, c, c, c
            ),
            "cudnnLRNCrossChannelForward": lambda: cudnn.lrn.forward(x, descriptor=lrn),
            "cudnnLRNCrossChannelBackward": lambda: cudnn.lrn.backward(x, x, x, descriptor=lrn),
            "cudnnReduceTensor": lambda: cudnn.reduction.reduce(MAX, x, axes=(2,), indices=True),
            "cudnnOpTensor": lambda: cudnn.op_tensor.apply(ADD, x, x),
            "cudnnAddTensor": lambda: cudnn.op_tensor.add(x, x),
            "cudnnSetTensor": lambda: cudnn.op_tensor.fill(x, 1.0),
            "cudnnScaleTensor": lambda: cudnn.op_tensor.scale(x, 2.0),
            "cudnnTransformTensor": lambda: cudnn.transform.transform(x, x.copy()),
        }
        for function, call in calls.items():
            fake.dll.calls.clear()
            call()
            assert function in fake.dll.names()
            fake.dll.status[function] = 3000
            with pytest.raises(CuDNNError) as caught:
                call()
            assert function in str(caught.value) and "the fake says no" in str(caught.value)
            fake.dll.status.clear()


def test_cupys_functions(fake: SimpleNamespace, arrays: SimpleNamespace) -> None:
    """``from minidnn import cudnn`` has them all; arguments as in CuPy 13."""
    a, one, c = arrays, (1, 1), arrays.c
    auto: dict[str, Any] = {"auto_tune": True, "tensor_core": "auto"}
    cudnn.convolution_forward(a.x, a.w, a.b, a.y, one, one, one, 1, **auto)
    assert fake.dll.names()[-1] == "cudnnAddTensor"
    cudnn.convolution_forward(
        a.xl, a.wl, a.b, a.yl, one, one, one, 1, d_layout=1, w_layout=1, **auto
    )
    cudnn.convolution_backward_filter(a.x, a.y, a.w, one, one, one, 1, deterministic=True, **auto)
    cudnn.convolution_backward_data(
        a.w, a.y, a.c, a.x, one, one, None, 1, deterministic=False, **auto
    )
    y = cudnn.activation_forward(a.x, 1)
    cudnn.activation_backward(a.x, y, y, 1, np.float32(0.5))
    cudnn.softmax_backward(cudnn.softmax_forward(a.x, -1, 1), a.x, 1, 1)
    window = ((2, 2), (2, 2), (0, 0), 0)
    assert cudnn.pooling_forward(a.x, a.half, *window) is a.half
    cudnn.pooling_backward(a.x, a.half, a.half, *window)
    states = cudnn.DropoutStates(None, 1)
    reserve, y = states.forward(None, a.x, 0.5)
    states.backward(cudnn.get_handle(), y, 0.5, reserve)
    states.set_dropout_ratio(0.1)
    with pytest.warns(DeprecationWarning, match="DropoutStates"):
        cudnn.create_dropout_states(cudnn.get_handle())
    rest: tuple[object, ...] = (None, None, 1e-5, 0.9, True, 1, False)
    assert len(cudnn.batch_normalization_forward_training(a.x, c, c, c, c, *rest)) == 3
    half = a.xl.astype(np.float16)
    rest = (None, None, 1e-5, 0.9, True, 2, True, 1)
    ex = cudnn.batch_normalization_forward_training_ex(half, c, c, c, c, *rest)
    assert len(ex) == 4 and ex[0].mem.size == fake.dll.size
    with pytest.warns(UserWarning, match="Could be faster"):
        cudnn.batch_normalization_forward_training(half, c, c, c, c, *rest)
    given = (c, c, 1e-5, 0.9, True, 1, False)
    y = cudnn.batch_normalization_forward_training(a.x, c, c, c, c, *given)
    assert y.shape == a.x.shape
    cudnn.batch_normalization_forward_inference(a.x, c, c, c, c, 1e-5, True, 1)
    gx, ggamma, _ = cudnn.batch_normalization_backward(
        half, half.ravel()[:4], half, c, c, 1e-5, True, 2, True, 1, reserve_space=ex[0]
    )
    assert gx.dtype == ggamma.dtype == np.float16
    single = np.dtype("float32")
    for made in (
        cudnn.create_tensor_descriptor(a.x, 1),
        cudnn.create_tensor_nd_descriptor(a.x),
        cudnn.create_uninitialized_tensor_descriptor(),
        cudnn.create_filter_descriptor(a.w),
        cudnn.create_convolution_descriptor(one, one, single, use_tensor_core=True, groups=2),
        cudnn.create_pooling_descriptor(*window[:3], 0),
        cudnn.create_activation_descriptor(1, relu_nan_opt=0, coef=0.5),
        cudnn.create_op_tensor_descriptor(0, single),
        cudnn.create_reduce_tensor_descriptor(3, single),
    ):
        assert made.value in fake.dll.live
        made.close()
    assert cudnn.create_tensor_nd_descriptor(fake.cupy.empty((0, 3))).value == 0


def test_cupys_errors(fake: SimpleNamespace, arrays: SimpleNamespace) -> None:
    a, one = arrays, (1, 1)
    given: dict[str, Any] = {"auto_tune": False, "tensor_core": "auto"}
    with pytest.raises(ValueError, match="c-contiguous"):
        cudnn.convolution_forward(
            a.x, a.w, None, a.y.transpose(0, 1, 3, 2), one, one, one, 1, **given
        )
    with pytest.raises(ValueError, match="unknown cudnnTensorFormat: 5"):
        cudnn.create_tensor_descriptor(a.x, 5)
    with pytest.raises(ValueError, match='"always", "auto", or "never"'):
        cudnn.convolution_forward(
            a.x, a.w, None, a.y, one, one, one, 1, auto_tune=False, tensor_core="yes"
        )
    with pytest.raises(TypeError, match="is not supported in cuDNN"):
        cudnn.activation_forward(a.x.astype(np.int64), 1)
    fake.dll.rows = [(1, 0.1, 1 << 40, 1, 0)]
    with pytest.raises(RuntimeError, match="no algorithm"):
        cudnn.convolution_forward(a.x, a.w, None, a.y, one, one, one, 1, **given)
    with pytest.raises(AttributeError, match="RNN, CTC loss"):
        _ = cudnn.compat.rnn_forward_training


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sign_of_zero_is_kept(fake: SimpleNamespace, dtype: str) -> None:
    y, number = fake.cupy.empty((2, 3), dtype), np.ctypeslib.as_ctypes_type(dtype)
    for value in (0.0, -0.0, 0.0):
        cudnn.op_tensor.fill(y, value)
        pointer = ctypes.cast(fake.dll.calls[-1][1][-1], ctypes.POINTER(number))
        assert math.copysign(1, pointer[0]) == math.copysign(1, value)


def test_the_sign_of_a_zero_coefficient_is_kept(fake: SimpleNamespace) -> None:
    mode = enums.ActivationMode.CUDNN_ACTIVATION_ELU
    for value in (0.0, -0.0):
        cudnn.activation.forward(fake.cupy.empty((2, 3)), mode=mode, coefficient=value)
    given = [a[-1] for n, a in fake.dll.calls if n == "cudnnSetActivationDescriptor"]
    assert [math.copysign(1, value) for value in given] == [1, -1]


def test_a_better_algorithm_over_the_limit_warns(
    fake: SimpleNamespace, arrays: SimpleNamespace
) -> None:
    a, one = arrays, (1, 1)
    fake.dll.rows = [(7, 0.1, 1 << 40, 1, 0), (1, 0.2, 100, 1, 0)]
    with pytest.warns(UserWarning, match="lack of workspace"):
        cudnn.convolution_forward(
            a.x, a.w, None, a.y, one, one, one, 1, auto_tune=False, tensor_core="never"
        )


def test_a_worse_algorithm_over_the_limit_does_not_warn(
    fake: SimpleNamespace, arrays: SimpleNamespace
) -> None:
    a, one = arrays, (1, 1)
    fake.dll.rows = [(1, 0.1, 100, 1, 0), (7, 0.2, 1 << 40, 1, 0)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cudnn.convolution_forward(
            a.x, a.w, None, a.y, one, one, one, 1, auto_tune=False, tensor_core="never"
        )


X, W, Y = (2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 6, 6)
BAD: dict[str, tuple[Any, str]] = {
    "channels": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty((6, 5, 3, 3))),
        r"x has 4 channels \(shape \(2, 4, 8, 8\)\), but w of shape \(6, 5, 3, 3\) .* takes 5",
    ),
    "groups": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty(W), groups=4),
        r"groups=4 must divide the 6 filters",
    ),
    "output": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty(W), m.empty((2, 6, 6, 5))),
        r"y has shape \(2, 6, 6, 5\), but .* give \(2, 6, 6, 6\)",
    ),
    "window": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty((6, 4, 9, 3))),
        r"reaches over 9 in dimension 2, but x .* has only 8",
    ),
    "padding": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty(W), padding=(1, -1)),
        r"padding=\(1, -1\) must be 2 integers of at least 0",
    ),
    "stride": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty(W), stride=0),
        r"stride=0 must be 2 integers of at least 1",
    ),
    "dilation": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty(W), dilation=1.5),
        r"dilation=1.5 must be an integer or 2 integers",
    ),
    "fractions": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty(W), padding=(1.5, 1)),
        r"padding=\(1.5, 1\) must be an integer or 2 integers",
    ),
    "pooling stride": (
        lambda m: cudnn.pooling.forward(m.empty(X), window=2, stride=2.0),  # type: ignore[arg-type]
        r"stride=2.0 must be an integer or 2 integers",
    ),
    "pooling windows": (
        lambda m: cudnn.pooling.forward(m.empty(X), window=(2, 2, 2)),
        r"window=\(2, 2, 2\) must be 2 integers of at least 1, one for each",
    ),
    "rank": (
        lambda m: cudnn.convolution.forward(m.empty((2, 4)), m.empty((6, 4))),
        r"x has shape \(2, 4\)",
    ),
    "dtype": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty(W, "float16")),
        r"x has dtype float32, w float16",
    ),
    "strange dtype": (
        lambda m: cudnn.convolution.forward(m.empty(X, "complex64"), m.empty(W, "complex64")),
        r"Dtype complex64 is not supported in cuDNN",
    ),
    "NumPy": (
        lambda m: cudnn.convolution.forward(np.zeros(X, "f"), m.empty(W)),
        r"x must be a CuPy array, got numpy.ndarray; use cupy.asarray",
    ),
    "empty": (
        lambda m: cudnn.convolution.forward(m.empty((0, 4, 8, 8)), m.empty(W)),
        r"x has no elements",
    ),
    "filter strides": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty((6, 8, 3, 3))[:, ::2]),
        r"w has shape .* dense filters",
    ),
    "negative strides": (
        lambda m: cudnn.convolution.forward(m.empty(X)[..., ::-1], m.empty(W), m.empty(Y)),
        r"x has strides .* non-negative",
    ),
    "overlap": (
        lambda m: cudnn.convolution.forward(
            m.empty(X), m.empty(W), np.broadcast_to(m.empty((1, 6, 6, 6)), Y, subok=True)
        ),
        r"y is written to, but its elements overlap",
    ),
    "beta": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty(W), beta=1.0),
        r"beta=1.0 adds to y, so y must be given",
    ),
    "algorithm": (
        lambda m: cudnn.convolution.forward(m.empty(X), m.empty(W), algorithm="fastest"),
        r"algorithm='fastest' must be one of heuristic, find, find_ex, or a number: 0 \(CUDNN",
    ),
    "no shape": (
        lambda m: cudnn.convolution.backward_data(m.empty(W), m.empty(Y)),
        r"give dx, or the shape of x",
    ),
    "bias": (
        lambda m: cudnn.convolution.bias_activation_forward(m.empty(X), m.empty(W), m.empty(5)),
        r"bias has shape \(5,\); it must be 6 contiguous",
    ),
    "bias dtype": (
        lambda m: cudnn.convolution.bias_activation_forward(
            m.empty(X, "int8"), m.empty(W, "int8"), m.empty(6, "int8")
        ),
        r"bias has dtype int8; with int8 x it is float32",
    ),
    "fused activation": (
        lambda m: cudnn.convolution.bias_activation_forward(
            m.empty(X),
            m.empty(W),
            m.empty(6),
            activation=enums.ActivationMode.CUDNN_ACTIVATION_TANH,
        ),
        r"activation=CUDNN_ACTIVATION_TANH cannot be fused",
    ),
    "identity": (
        lambda m: cudnn.activation.forward(m.empty(X), mode=IDENTITY),
        r"is for convolution.bias_activation_forward only",
    ),
    "pooling window": (
        lambda m: cudnn.pooling.forward(m.empty(X), window=9),
        r"window=\(9, 9\) is larger than x",
    ),
    "pooling padding": (
        lambda m: cudnn.pooling.forward(m.empty(X), window=2, padding=2),
        r"padding=\(2, 2\) must be below window=\(2, 2\)",
    ),
    "pooling output": (
        lambda m: cudnn.pooling.forward(m.empty(X), m.empty(Y), window=2),
        r"this pooling of x gives \(2, 4, 4, 4\)",
    ),
    "softmax rank": (lambda m: cudnn.softmax.forward(m.empty(5)), r"softmax wants \(N, C"),
    "shapes": (
        lambda m: cudnn.softmax.backward(m.empty(X), m.empty(Y)),
        r"dy has shape \(2, 6, 6, 6\), but y has \(2, 4, 8, 8\)",
    ),
    "dropout ratio": (lambda m: cudnn.dropout.Dropout(1.0), r"ratio=1.0 must be at least 0"),
    "lrn": (lambda m: cudnn.lrn.LRNDescriptor.of(n=17), r"1 <= n <= 16"),
    "batch norm size": (
        lambda m: cudnn.batch_norm.forward_training(m.empty(X), m.empty(5), m.empty(4)),
        r"scale has shape \(5,\); it must be contiguous with 4 elements",
    ),
    "batch norm dtype": (
        lambda m: cudnn.batch_norm.forward_training(m.empty(X), m.empty(4, "e"), m.empty(4)),
        r"scale has dtype float16; for float32 data it must be float32",
    ),
    "reduction indices": (
        lambda m: cudnn.reduction.reduce(
            enums.ReduceTensorOp.CUDNN_REDUCE_TENSOR_ADD, m.empty(X), indices=True
        ),
        r"CUDNN_REDUCE_TENSOR_ADD has no indices",
    ),
    "reduction axes": (
        lambda m: cudnn.reduction.reduce(MAX, m.empty(X), axes=(4,)),
        r"axes=\(4,\) must lie in a",
    ),
    "op needs b": (lambda m: cudnn.op_tensor.apply(ADD, m.empty(X)), r"CUDNN_OP_TENSOR_ADD needs"),
    "broadcast": (
        lambda m: cudnn.op_tensor.add(m.empty((1, 3, 1, 1)), m.empty(X)),
        r"a has shape \(1, 3, 1, 1\); each extent must be 1 or that of c",
    ),
    "too many dimensions": (
        lambda m: cudnn.activation.forward(m.empty((1,) * 9), mode=RELU),
        r"9 dimensions .* takes 8",
    ),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_arguments_are_told_before_cudnn_runs(fake: SimpleNamespace, name: str) -> None:
    call, text = BAD[name]
    with pytest.raises((ArgumentError, DTypeError), match=text):
        call(fake.cupy)
    executed = {n for n in fake.dll.names() if n.endswith(("Forward", "Backward", "Tensor"))}
    assert not executed


def test_another_device_is_told(fake: SimpleNamespace) -> None:
    x, w = fake.cupy.empty(X), fake.cupy.empty(W)
    w.device_id = 1
    with pytest.raises(ArgumentError, match="w is on device 1, but the current device is 0"):
        cudnn.convolution.forward(x, w)
    w.device_id = 0
    cudnn.convolution.forward(x, w)
    fake.cupy.device = 1
    with pytest.raises(ArgumentError, match="x is on device 0, but the current device is 1"):
        cudnn.convolution.forward(x, w)


def test_dropout_is_bound_to_its_device_and_can_be_closed(fake: SimpleNamespace) -> None:
    drop = cudnn.dropout.Dropout(0.5)
    fake.cupy.device = 1
    x = fake.cupy.empty(X)
    x.device_id = 1
    with pytest.raises(ArgumentError, match="states of this Dropout is on device 0, but the curr"):
        drop.forward(x)
    fake.cupy.device = 0
    drop.forward(fake.cupy.empty(X))
    drop.close()
    with pytest.raises(ArgumentError, match="this Dropout is closed"):
        drop.forward(fake.cupy.empty(X))
