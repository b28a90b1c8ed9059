"""What CuPy 13's own tests ask of its cuDNN module, asked of ours, and the results compared.

The shapes and options are those of CuPy's test suite.  Where that only ran a function or used
zeros, numbers are checked here as well.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from minidnn import cudnn
from minidnn.cudnn import constants as libcudnn

pytestmark = pytest.mark.gpu

NCHW, NHWC = libcudnn.CUDNN_TENSOR_NCHW, libcudnn.CUDNN_TENSOR_NHWC
RNG = np.random.default_rng(13)


def arange(cupy: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """1, 2, 3, ..."""
    return cupy.asarray(np.arange(1, np.prod(shape) + 1).reshape(shape).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "mode, coef",
    [("SIGMOID", 0.0), ("RELU", 0.0), ("TANH", 0.0), ("CLIPPED_RELU", 0.75), ("ELU", 0.75)],
)
def test_activation(real_cupy: Any, mode: str, coef: float, dtype: Any) -> None:
    number = getattr(libcudnn, f"CUDNN_ACTIVATION_{mode}")
    x = arange(real_cupy, (3, 4), dtype)
    y = cudnn.activation_forward(x, number, dtype(coef))
    truth: Any = {
        "SIGMOID": lambda v: 1 / (1 + np.exp(-v)),
        "RELU": lambda v: np.maximum(v, 0),
        "TANH": np.tanh,
        "CLIPPED_RELU": lambda v: np.clip(v, 0, coef),
        "ELU": lambda v: v,
    }[mode]
    np.testing.assert_allclose(y.get(), truth(x.get()), rtol=1e-5)
    gx = cudnn.activation_backward(x, y, x, number, dtype(coef))
    assert gx.shape == x.shape and gx.dtype == x.dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("seed", [0, 100])
def test_dropout(real_cupy: Any, dtype: Any, ratio: float, seed: int) -> None:
    x, gy = arange(real_cupy, (3, 4), dtype), arange(real_cupy, (3, 4), dtype)
    states, same = cudnn.DropoutStates(None, seed), cudnn.DropoutStates(None, seed)
    reserve, y = states.forward(None, x, ratio)
    reserve2, y2 = same.forward(cudnn.get_handle(), x, ratio)
    assert (y == y2).all()
    assert (x == y).all() if ratio == 0 else (x != y).all()
    gx = states.backward(None, gy, ratio, reserve)
    assert (gx == same.backward(None, gy, ratio, reserve2)).all()
    assert (y / x == gx / gy).all()


class Shapes:
    """Input, filter and output of CuPy's convolution tests: 3 by 3 to 2 by 2, stride 2."""

    def __init__(self, ndim: int, dilate: int, groups: int, layout: int) -> None:
        into, out = (4, 4) if layout == NHWC else (3, 2)
        self.pads = (3 // 2 * dilate,) * ndim
        self.strides, self.dilations = (2,) * ndim, (dilate,) * ndim
        if layout == NHWC:
            self.x = (2, *(3,) * ndim, into * groups)
            self.w = (out * groups, *(3,) * ndim, into)
            self.y = (2, *(2,) * ndim, out * groups)
        else:
            self.x = (2, into * groups, *(3,) * ndim)
            self.w = (out * groups, into, *(3,) * ndim)
            self.y = (2, out * groups, *(2,) * ndim)


def truth(
    x: np.ndarray, w: np.ndarray, s: Shapes, groups: int, layout: int
) -> tuple[Any, Any, Any]:
    """PyTorch's float64 output with x and w as leaves, in NCHW."""
    import torch

    tx, tw = torch.from_numpy(x), torch.from_numpy(w)
    if layout == NHWC:
        tx, tw = tx.permute(0, 3, 1, 2), tw.permute(0, 3, 1, 2)
    tx, tw = tx.contiguous().requires_grad_(), tw.contiguous().requires_grad_()
    call = getattr(torch.nn.functional, f"conv{len(s.pads)}d")
    return call(tx, tw, None, s.strides, s.pads, s.dilations, groups), tx, tw


def close(found: Any, expected: np.ndarray, dtype: Any) -> None:
    """float32 may be TF32."""
    bound = {"float16": 2e-2, "float32": 1e-2, "float64": 1e-12}[np.dtype(dtype).name]
    np.testing.assert_allclose(found.get(), expected, rtol=bound, atol=bound * 10)


@pytest.fixture(params=[0, 2**22])
def limit(request: pytest.FixtureRequest) -> Iterator[int]:
    before = cudnn.get_max_workspace_size()
    cudnn.set_max_workspace_size(request.param)
    yield request.param
    cudnn.set_max_workspace_size(before)


OPTIONS = list(itertools.product(["always", "auto", "never"], [1, 2], [1, 2], [True, False]))


@pytest.mark.filterwarnings("ignore:The best algo")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("layout", [NCHW, NHWC])
@pytest.mark.parametrize("bias", [True, False])
def test_convolution_forward(
    real_cupy: Any, dtype: Any, layout: int, bias: bool, limit: int
) -> None:
    for tensor_core, dilate, groups, auto_tune in OPTIONS:
        if layout == NHWC and groups > 1:
            continue
        s = Shapes(2, dilate, groups, layout)
        x, w = (RNG.standard_normal(shape).astype(dtype) for shape in (s.x, s.w))
        channels = s.y[3] if layout == NHWC else s.y[1]
        b = RNG.standard_normal(channels).astype(dtype)
        y = real_cupy.ones(s.y, dtype)
        cudnn.convolution_forward(
            real_cupy.asarray(x), real_cupy.asarray(w), real_cupy.asarray(b) if bias else None, y,
            s.pads, s.strides, s.dilations, groups,
            auto_tune=auto_tune, tensor_core=tensor_core, d_layout=layout, w_layout=layout,
        )  # fmt: skip
        expected = truth(x.astype("d"), w.astype("d"), s, groups, layout)[0].detach().numpy()
        expected = expected + (b[:, None, None] if bias else 0)
        close(y, expected.transpose(0, 2, 3, 1) if layout == NHWC else expected, dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("deterministic", [True, False])
def test_convolution_backward(
    real_cupy: Any, dtype: Any, ndim: int, deterministic: bool, limit: int
) -> None:
    import torch

    if deterministic and limit == 0:
        pytest.skip("CuPy skips this too: few algorithms are deterministic without workspace")
    for tensor_core, dilate, groups, auto_tune in OPTIONS:
        s = Shapes(ndim, dilate, groups, NCHW)
        x, w, gy = (RNG.standard_normal(shape).astype(dtype) for shape in (s.x, s.w, s.y))
        given: dict[str, Any] = {
            "deterministic": deterministic,
            "auto_tune": auto_tune,
            "tensor_core": tensor_core,
        }
        where = (s.pads, s.strides, s.dilations, groups)
        y, tx, tw = truth(x.astype("d"), w.astype("d"), s, groups, NCHW)
        gx_true, gw_true = torch.autograd.grad(y, (tx, tw), torch.from_numpy(gy.astype("d")))
        gpu = [real_cupy.asarray(a) for a in (x, w, gy)]
        gw = real_cupy.ones(s.w, dtype)
        cudnn.convolution_backward_filter(gpu[0], gpu[2], gw, *where, **given)
        close(gw, gw_true.numpy(), dtype)
        b = RNG.standard_normal(s.x[1]).astype(dtype)
        for bias in (b, None):
            gx = real_cupy.ones(s.x, dtype)
            gb = None if bias is None else real_cupy.asarray(bias)
            cudnn.convolution_backward_data(gpu[1], gpu[2], gb, gx, *where, **given)
            more = 0 if bias is None else bias.reshape(-1, *(1,) * ndim)
            close(gx, gx_true.numpy() + more, dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "mode", [libcudnn.CUDNN_BATCHNORM_SPATIAL, libcudnn.CUDNN_BATCHNORM_SPATIAL_PERSISTENT]
)
@pytest.mark.parametrize("layout", [NCHW, NHWC])
def test_batch_normalization(real_cupy: Any, dtype: Any, mode: int, layout: int) -> None:
    """As Chainer calls it: parameters in the dtype of x, which may not be cuDNN's."""
    cupy, axes = real_cupy, (0, 1, 2) if layout == NHWC else (0, 2, 3)
    x = RNG.standard_normal((4, 6, 5, 8) if layout == NHWC else (4, 8, 6, 5)).astype(dtype)
    gy = RNG.standard_normal(x.shape).astype(dtype)
    gamma, beta = (RNG.standard_normal(8).astype(dtype) for _ in range(2))
    run_mean, run_var = cupy.zeros(8, dtype), cupy.ones(8, dtype)
    gx, ggy, g, b = (cupy.asarray(a) for a in (x, gy, gamma, beta))
    reserve, y, mean, inv_std = cudnn.batch_normalization_forward_training_ex(
        gx, g, b, run_mean, run_var, None, None, 1e-4, 0.9, True, mode, True, layout
    )
    x64, kept = x.astype("d"), (1, 1, 1, 8) if layout == NHWC else (1, 8, 1, 1)
    m, v = x64.mean(axes), x64.var(axes)
    hat = (x64 - m.reshape(kept)) / np.sqrt(v.reshape(kept) + 1e-4)
    bound = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-10}[np.dtype(dtype).name]
    want = hat * gamma.reshape(kept) + beta.reshape(kept)
    np.testing.assert_allclose(y.get(), want, rtol=bound, atol=bound)
    np.testing.assert_allclose(run_mean.get(), 0.1 * m, rtol=bound, atol=bound)
    np.testing.assert_allclose(inv_std.get(), 1 / np.sqrt(v + 1e-4), rtol=1e-3)
    back, ggamma, gbeta = cudnn.batch_normalization_backward(
        gx, g, ggy, mean, inv_std, 1e-4, True, mode, True, layout, reserve_space=reserve
    )
    assert ggamma.dtype == dtype and gbeta.dtype == dtype and back.shape == x.shape
    np.testing.assert_allclose(gbeta.get(), gy.astype("d").sum(axes), rtol=bound, atol=bound * 20)
    np.testing.assert_allclose(ggamma.get(), (gy * hat).sum(axes), rtol=bound, atol=bound * 20)
    fixed = cudnn.batch_normalization_forward_inference(
        gx, g, b, cupy.asarray(m.astype(dtype)), cupy.asarray(v.astype(dtype)), 1e-4, True, mode,
        layout,
    )  # fmt: skip
    np.testing.assert_allclose(fixed.get(), want, rtol=3 * bound, atol=3 * bound)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_pooling_and_softmax(real_cupy: Any, dtype: Any) -> None:
    import torch

    x = RNG.permutation(2 * 3 * 6 * 8).reshape(2, 3, 6, 8).astype(dtype)
    gx = real_cupy.asarray(x)
    y = real_cupy.empty((2, 3, 3, 4), dtype)
    window = ((2, 2), (2, 2), (0, 0), libcudnn.CUDNN_POOLING_MAX)
    assert cudnn.pooling_forward(gx, y, *window) is y
    want = torch.nn.functional.max_pool2d(torch.from_numpy(x.astype("d")), 2).numpy()
    assert (y.get() == want).all()
    back = cudnn.pooling_backward(gx, y, real_cupy.ones_like(y), *window)
    assert float(back.sum()) == y.size
    soft = cudnn.softmax_forward(gx / 100, 1, libcudnn.CUDNN_SOFTMAX_ACCURATE)
    np.testing.assert_allclose(soft.sum(1).get(), 1, rtol=3e-3)
    slope = cudnn.softmax_backward(soft, gx, -1, libcudnn.CUDNN_SOFTMAX_LOG)
    assert slope.shape == x.shape


def test_error_can_be_pickled() -> None:
    one = libcudnn.CuDNNError(1)
    two = pickle.loads(pickle.dumps(one))
    assert one.args == two.args and str(one) == str(two)
