"""Everything but convolution on the GPU, against NumPy or PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minidnn import cudnn
from minidnn.cudnn import enums
from minidnn.cudnn.errors import CuDNNError

pytestmark = pytest.mark.gpu

TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
DTYPES = list(TOLERANCE)
ACT = enums.ActivationMode
POOL = enums.PoolingMode


def draw(oracles: Any, seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return oracles.rounded(np.random.default_rng([seed, *shape]), shape, dtype)


def nan(oracles: Any, cupy: Any, shape: tuple[int, ...], dtype: str, last: bool = False) -> Any:
    return oracles.on_gpu(cupy, np.full(shape, np.nan), dtype, last, "")


def close(found: Any, truth: np.ndarray, dtype: str, factor: float = 1.0) -> None:
    values = found.get().astype(np.float64)
    bound = TOLERANCE[dtype] * factor
    np.testing.assert_allclose(values, truth, rtol=bound, atol=bound)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


FORMULAS: dict[str, tuple[float, Any]] = {
    "SIGMOID": (0.0, lambda x, c: sigmoid(x)),
    "RELU": (0.0, lambda x, c: np.maximum(x, 0)),
    "TANH": (0.0, lambda x, c: np.tanh(x)),
    "CLIPPED_RELU": (0.7, lambda x, c: np.clip(x, 0, c)),
    "ELU": (1.3, lambda x, c: np.where(x > 0, x, c * np.expm1(x))),
    "SWISH": (1.0, lambda x, c: x * sigmoid(c * x)),
}
SLOPES: dict[str, Any] = {
    "SIGMOID": lambda x, c: sigmoid(x) * (1 - sigmoid(x)),
    "RELU": lambda x, c: (x > 0) * 1.0,
    "TANH": lambda x, c: 1 - np.tanh(x) ** 2,
    "CLIPPED_RELU": lambda x, c: ((x > 0) & (x < c)) * 1.0,
    "ELU": lambda x, c: np.where(x > 0, 1, c * np.exp(x)),
    "SWISH": lambda x, c: sigmoid(c * x) * (1 + c * x * (1 - sigmoid(c * x))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", list(FORMULAS))
def test_activation(real_cupy: Any, oracles: Any, mode: str, dtype: str) -> None:
    coefficient, formula = FORMULAS[mode]
    kind = getattr(ACT, f"CUDNN_ACTIVATION_{mode}")
    for seed, (shape, last, sliced) in enumerate(
        [
            ((5,), False, ""),
            ((3, 4), False, ""),
            ((2, 5, 6, 7), True, ""),
            ((2, 3, 4, 5), False, "channels"),
            ((2, 3, 4, 5, 6), False, "space"),
        ]
    ):
        x = draw(oracles, seed, shape, dtype)
        dy = draw(oracles, seed + 50, shape, dtype)
        gx = oracles.on_gpu(real_cupy, x, dtype, last, sliced)
        gdy = oracles.on_gpu(real_cupy, dy, dtype, last, "")
        y = cudnn.activation.forward(
            gx, nan(oracles, real_cupy, shape, dtype), mode=kind, coefficient=coefficient
        )
        close(y, formula(x, coefficient), dtype)
        # Backward, cuDNN wants one layout for all four.
        dense = [oracles.on_gpu(real_cupy, a, dtype, last, "") for a in (oracles.host(y), x)]
        dx = nan(oracles, real_cupy, shape, dtype, last)
        cudnn.activation.backward(dense[0], gdy, dense[1], dx, mode=kind, coefficient=coefficient)
        close(dx, SLOPES[mode](x, coefficient) * dy, dtype, 3)
        before = draw(oracles, seed + 99, shape, dtype)
        scaled = cudnn.activation.forward(
            gx, oracles.on_gpu(real_cupy, before, dtype, last, ""), mode=kind,
            coefficient=coefficient, alpha=1.5, beta=0.5,
        )  # fmt: skip
        close(scaled, 1.5 * formula(x, coefficient) + 0.5 * before, dtype, 3)


def test_relu_and_nan(real_cupy: Any) -> None:
    x = real_cupy.asarray([[np.nan, -1.0, 2.0, np.inf]], "float32")
    keep = cudnn.activation.forward(x, mode=ACT.CUDNN_ACTIVATION_RELU)
    assert np.isnan(keep.get()[0, 0]) and keep.get()[0, 3] == np.inf


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pooling(real_cupy: Any, oracles: Any, rank: int, dtype: str) -> None:
    import torch

    rng = np.random.default_rng(rank)
    for seed in range(12):
        extents = tuple(int(v) for v in rng.integers(4, 10, rank))
        window = tuple(int(v) for v in rng.integers(1, 5, rank))
        window = tuple(min(w, e) for w, e in zip(window, extents, strict=True))
        stride = tuple(int(v) for v in rng.integers(1, 4, rank))
        padding = tuple(int(rng.integers(0, w // 2 + 1)) for w in window)
        shape = (2, 3, *extents)
        last = bool(seed % 2)
        # All values differ, so that a maximum lies in one place.
        values = rng.permutation(int(np.prod(shape))).reshape(shape) / 256.0
        x = torch.from_numpy(values).requires_grad_()
        gx = oracles.on_gpu(real_cupy, values, dtype, last, "")
        window_of = (window, stride, padding)
        functional = torch.nn.functional
        average = getattr(functional, f"avg_pool{rank}d")
        largest = getattr(functional, f"max_pool{rank}d")(x, *window_of)
        references = {
            POOL.CUDNN_POOLING_MAX: largest,
            POOL.CUDNN_POOLING_MAX_DETERMINISTIC: largest,
            POOL.CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING: average(x, *window_of),
            POOL.CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING: average(
                x, *window_of, count_include_pad=False
            ),
        }
        for mode, truth in references.items():
            dy = draw(oracles, seed, tuple(truth.shape), dtype)
            (slope,) = torch.autograd.grad(truth, x, torch.from_numpy(dy), retain_graph=True)
            given: Any = {"mode": mode, "window": window, "stride": stride, "padding": padding}
            out = nan(oracles, real_cupy, tuple(truth.shape), dtype, last)
            y = cudnn.pooling.forward(gx, out, **given)
            close(y, truth.detach().numpy(), dtype, 4)
            gdy = oracles.on_gpu(real_cupy, dy, dtype, last, "")
            dx = cudnn.pooling.backward(
                y, gdy, gx, nan(oracles, real_cupy, shape, dtype, last), **given
            )
            if dtype in ("float64", "float32"):  # others round equal maxima together
                close(dx, slope.numpy(), dtype, 10)
            assert np.isfinite(dx.get().astype("float64")).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["CHANNEL", "INSTANCE"])
@pytest.mark.parametrize("algorithm", ["FAST", "ACCURATE", "LOG"])
def test_softmax(real_cupy: Any, oracles: Any, algorithm: str, mode: str, dtype: str) -> None:
    for seed, (shape, last) in enumerate(
        [((4, 10), False), ((2, 7, 3, 4), False), ((2, 7, 3, 4), True), ((2, 3, 2, 3, 4), False)]
    ):
        x = draw(oracles, seed, shape, dtype)
        axes = (1,) if mode == "CHANNEL" else tuple(range(1, len(shape)))
        exp = np.exp(x - x.max(axes, keepdims=True))
        soft = exp / exp.sum(axes, keepdims=True)
        truth = np.log(soft) if algorithm == "LOG" else soft
        given = {
            "algorithm": enums.SoftmaxAlgorithm[f"CUDNN_SOFTMAX_{algorithm}"],
            "mode": enums.SoftmaxMode[f"CUDNN_SOFTMAX_MODE_{mode}"],
        }
        gx = oracles.on_gpu(real_cupy, x, dtype, last, "")
        y = cudnn.softmax.forward(gx, nan(oracles, real_cupy, shape, dtype, last), **given)
        close(y, truth, dtype, 2)
        dy = draw(oracles, seed + 9, shape, dtype)
        gdy = oracles.on_gpu(real_cupy, dy, dtype, last, "")
        dx = cudnn.softmax.backward(y, gdy, nan(oracles, real_cupy, shape, dtype, last), **given)
        if algorithm == "LOG":
            slope = dy - soft * dy.sum(axes, keepdims=True)
        else:
            slope = soft * (dy - (dy * soft).sum(axes, keepdims=True))
        close(dx, slope, dtype, 20)


def test_dropout(real_cupy: Any) -> None:
    x = real_cupy.ones((64, 1000), "float32")
    with cudnn.dropout.Dropout(0.3, seed=5) as drop, cudnn.dropout.Dropout(0.3, seed=5) as same:
        saved = drop.save()
        y, reserve = drop.forward(x)
        other, _ = same.forward(x)
        assert (y == other).all()
        kept = y.get() != 0
        assert abs(kept.mean() - 0.7) < 0.01
        np.testing.assert_allclose(y.get()[kept], 1 / 0.7, rtol=1e-6)
        dx = drop.backward(x, reserve)
        assert (dx == y).all()
        second, _ = drop.forward(x)
        assert (second != y).any()
        drop.restore(saved)
        again, _ = drop.forward(x)
        assert (again == y).all()
        assert drop.info().seed == 5 and abs(drop.info().ratio - 0.3) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", ["SPATIAL", "PER_ACTIVATION", "SPATIAL_PERSISTENT"])
def test_batch_norm(real_cupy: Any, oracles: Any, mode: str, last: bool, dtype: str) -> None:
    cupy, shape = real_cupy, (6, 8, 5, 7)
    kind = enums.BatchNormMode[f"CUDNN_BATCHNORM_{mode}"]
    axes = (0,) if mode == "PER_ACTIVATION" else (0, 2, 3)
    parameter = "float64" if dtype == "float64" else "float32"
    x, dy = draw(oracles, 1, shape, dtype), draw(oracles, 2, shape, dtype)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    scale, bias = (draw(oracles, s, mean.shape, "float32") for s in (3, 4))
    count = x.size // mean.size
    gx, gdy = (oracles.on_gpu(cupy, a, dtype, last, "") for a in (x, dy))
    gscale, gbias = (cupy.asarray(a.astype(parameter)) for a in (scale, bias))
    run_mean, run_var = cupy.zeros(mean.shape, parameter), cupy.ones(mean.shape, parameter)
    hat = (x - mean) / np.sqrt(var + 1e-5)
    try:
        result = cudnn.batch_norm.forward_training(
            gx, gscale, gbias, running_mean=run_mean, running_variance=run_var, momentum=0.1,
            mode=kind,
        )  # fmt: skip
    except CuDNNError as error:
        assert "NOT_SUPPORTED" in str(error)
        assert dtype in ("float64", "bfloat16") or mode == "SPATIAL_PERSISTENT", str(error)
        pytest.skip(f"cuDNN refuses: {str(error).splitlines()[0]}")
    close(result.y, hat * scale + bias, dtype, 4)
    np.testing.assert_allclose(result.mean.get(), mean, atol=1e-5)
    np.testing.assert_allclose(run_mean.get(), 0.1 * mean, atol=1e-5)
    np.testing.assert_allclose(
        run_var.get(), 0.9 + 0.1 * var * count / (count - 1), rtol=1e-4, atol=1e-5
    )
    grads = cudnn.batch_norm.backward(gx, gdy, gscale, result, mode=kind)
    dscale, dbias = (dy * hat).sum(axes, keepdims=True), dy.sum(axes, keepdims=True)
    dx = scale / np.sqrt(var + 1e-5) * (dy - dbias / count - hat * dscale / count)
    close(grads.dx, dx, dtype, 20)
    close(grads.dscale, dscale, dtype, 50)
    close(grads.dbias, dbias, dtype, 50)
    y = cudnn.batch_norm.forward_inference(
        gx, gscale, gbias, cupy.asarray(mean.astype(parameter)),
        cupy.asarray(var.astype(parameter)), nan(oracles, cupy, shape, dtype, last), mode=kind,
    )  # fmt: skip
    close(y, hat * scale + bias, dtype, 4)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_lrn(real_cupy: Any, oracles: Any, dtype: str) -> None:
    import torch

    x, dy = draw(oracles, 1, (2, 9, 4, 5), dtype), draw(oracles, 2, (2, 9, 4, 5), dtype)
    t = torch.from_numpy(x).requires_grad_()
    truth = torch.nn.functional.local_response_norm(t, 5, alpha=0.1, beta=0.75, k=2.0)
    (slope,) = torch.autograd.grad(truth, t, torch.from_numpy(dy))
    gx, gdy = (oracles.on_gpu(real_cupy, a, dtype, False, "") for a in (x, dy))
    with cudnn.lrn.LRNDescriptor.of(5, 0.1, 0.75, 2.0) as descriptor:
        y = cudnn.lrn.forward(gx, nan(oracles, real_cupy, x.shape, dtype), descriptor=descriptor)
        close(y, truth.detach().numpy(), dtype, 50)
        dx = cudnn.lrn.backward(y, gdy, gx, descriptor=descriptor)
        close(dx, slope.numpy(), dtype, 100)


REDUCTIONS: dict[str, Any] = {
    "ADD": lambda a, axes: a.sum(axes, keepdims=True),
    "MUL": lambda a, axes: a.prod(axes, keepdims=True),
    "MIN": lambda a, axes: a.min(axes, keepdims=True),
    "MAX": lambda a, axes: a.max(axes, keepdims=True),
    "AMAX": lambda a, axes: np.abs(a).max(axes, keepdims=True),
    "AVG": lambda a, axes: a.mean(axes, keepdims=True),
    "NORM1": lambda a, axes: np.abs(a).sum(axes, keepdims=True),
    "NORM2": lambda a, axes: np.sqrt((a * a).sum(axes, keepdims=True)),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("op", list(REDUCTIONS))
def test_reduction(real_cupy: Any, oracles: Any, op: str, dtype: str) -> None:
    kind = enums.ReduceTensorOp[f"CUDNN_REDUCE_TENSOR_{op}"]
    for axes in ((0,), (1,), (2, 3), (0, 2, 3), None):
        a = draw(oracles, 3, (3, 4, 2, 5), dtype)
        truth = REDUCTIONS[op](a, axes)
        ga = oracles.on_gpu(real_cupy, a, dtype, False, "")
        c = cudnn.reduction.reduce(kind, ga, axes=axes)
        close(c, truth, dtype, 20)


def test_reduction_with_indices(real_cupy: Any, oracles: Any) -> None:
    a = draw(oracles, 4, (3, 4, 2, 5), "float32")
    ga = real_cupy.asarray(a.astype("float32"))
    kind = enums.ReduceTensorOp.CUDNN_REDUCE_TENSOR_MAX
    c, where = cudnn.reduction.reduce(kind, ga, axes=(2, 3), indices=True)
    assert (where.get().reshape(3, 4) == a.reshape(3, 4, -1).argmax(2)).all()
    close(c, a.max((2, 3), keepdims=True), "float32")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_op_tensor(real_cupy: Any, oracles: Any, dtype: str) -> None:
    a, b = draw(oracles, 5, (2, 3, 4, 5), dtype), draw(oracles, 6, (1, 3, 1, 1), dtype)
    ga, gb = (oracles.on_gpu(real_cupy, v, dtype, False, "") for v in (a, b))
    op = enums.OpTensorOp
    pairs: dict[Any, Any] = {
        op.CUDNN_OP_TENSOR_ADD: np.add,
        op.CUDNN_OP_TENSOR_MUL: np.multiply,
        op.CUDNN_OP_TENSOR_MIN: np.minimum,
        op.CUDNN_OP_TENSOR_MAX: np.maximum,
    }
    for kind, formula in pairs.items():
        c = cudnn.op_tensor.apply(kind, ga, gb, alpha1=2.0, alpha2=0.5)
        close(c, formula(2 * a, 0.5 * b), dtype, 3)
    absolute = oracles.on_gpu(real_cupy, np.abs(a), dtype, False, "")
    close(cudnn.op_tensor.apply(op.CUDNN_OP_TENSOR_SQRT, absolute), np.sqrt(np.abs(a)), dtype)
    close(cudnn.op_tensor.apply(op.CUDNN_OP_TENSOR_NOT, ga), 1 - a, dtype, 2)
    target = ga.copy()
    close(cudnn.op_tensor.add(gb, target, alpha=3.0), a + 3 * b, dtype, 3)
    close(cudnn.op_tensor.scale(target, 0.5), (a + 3 * b) / 2, dtype, 3)
    assert (cudnn.op_tensor.fill(target, 1.5) == 1.5).all()


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_fill_of_other_dtypes(real_cupy: Any, oracles: Any, dtype: str) -> None:
    y = oracles.on_gpu(real_cupy, np.zeros((2, 3, 4, 5)), dtype, False, "")
    assert (oracles.host(cudnn.op_tensor.fill(y, 7)) == 7).all()


def test_transform(real_cupy: Any, oracles: Any) -> None:
    cupy = real_cupy
    x = draw(oracles, 7, (2, 3, 4, 5), "float32")
    gx = oracles.on_gpu(cupy, x, "float32", False, "")
    y = nan(oracles, cupy, x.shape, "float32", True)
    assert (cudnn.transform.transform(gx, y).get() == x.astype("float32")).all()
    nchw, nhwc = enums.TensorFormat.CUDNN_TENSOR_NCHW, enums.TensorFormat.CUDNN_TENSOR_NHWC
    source = cudnn.tensor.TensorDescriptor.packed("float32", (2, 3, 4, 5), nchw)
    with cudnn.transform.TensorTransformDescriptor.of(nhwc, (0, 1, 0, 0), (0, 0, 0, 0)) as how:
        target, size = how.destination(source)
        out = cupy.full(size // 4, np.nan, "float32")
        cudnn.transform.transform_ex(how, gx, source, out, target)
        padded = np.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0)))
        found = out.get().reshape(2, 4, 5, 4).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(found, padded.astype("float32"))


@pytest.mark.parametrize(
    "name",
    [
        "convolution",
        "fused",
        "activation",
        "pooling",
        "softmax",
        "batch_norm",
        "dropout",
        "lrn",
        "add",
        "compat",
    ],
)
def test_capture(real_cupy: Any, name: str) -> None:
    """Each forward call can be recorded once warm, and replays on new input."""
    cupy = real_cupy
    x, w = cupy.random.randn(2, 8, 9, 9).astype("f"), cupy.random.randn(8, 8, 3, 3).astype("f")
    y, half = cupy.empty_like(x), cupy.empty((2, 8, 4, 4), "f")
    c = cupy.random.randn(8).astype("f")
    drop = cudnn.dropout.Dropout(0.0)
    _, reserve = drop.forward(x, y)
    lrn = cudnn.lrn.LRNDescriptor.of()
    calls: dict[str, Any] = {
        "convolution": lambda: cudnn.convolution.forward(x, w, y, padding=1),
        "fused": lambda: cudnn.convolution.bias_activation_forward(x, w, c, y, padding=1),
        "activation": lambda: cudnn.activation.forward(x, y, mode=ACT.CUDNN_ACTIVATION_TANH),
        "pooling": lambda: cudnn.pooling.forward(x, half, window=2),
        "softmax": lambda: cudnn.softmax.forward(x, y),
        "batch_norm": lambda: cudnn.batch_norm.forward_inference(x, c, c, c, c * c, y),
        "dropout": lambda: drop.forward(x, y, reserve),
        "lrn": lambda: cudnn.lrn.forward(x, y, descriptor=lrn),
        "add": lambda: cudnn.op_tensor.add(x, y, beta=0.0),
        "compat": lambda: cudnn.compat.convolution_forward(
            x, w, c, y, (1, 1), (1, 1), (1, 1), 1, auto_tune=False, tensor_core="auto"
        ),
    }
    squares = c * c
    calls["batch_norm"] = lambda: cudnn.batch_norm.forward_inference(x, c, c, c, squares, y)
    call, out = calls[name], half if name == "pooling" else y
    cupy.cuda.Device().synchronize()  # the stream below does not wait for what was set up here
    with cupy.cuda.Stream(non_blocking=True) as stream:
        call()
        stream.synchronize()
        stream.begin_capture()
        call()
        graph = stream.end_capture()
        x *= 2
        graph.launch(stream)
        stream.synchronize()
        replayed = out.get()
        call()
        stream.synchronize()
        np.testing.assert_allclose(replayed, out.get(), rtol=1e-6, atol=1e-6)


def test_wrong_arrays_raise(real_cupy: Any) -> None:
    cupy = real_cupy
    x, w = cupy.ones((2, 8, 9, 9), "f"), cupy.ones((8, 8, 3, 3), "f")
    for bad in (
        lambda: cudnn.convolution.forward(x, w.astype("e")),
        lambda: cudnn.convolution.forward(x, w[:, :4]),
        lambda: cudnn.convolution.forward(x, w[:, ::2], groups=2),
        lambda: cudnn.convolution.forward(x, w.transpose(1, 0, 3, 2)[..., ::-1]),
        lambda: cudnn.convolution.forward(x, w, cupy.ones((2, 8, 9, 9), "f")),
        lambda: cudnn.convolution.forward(x.get(), w),
        lambda: cudnn.activation.forward(x.astype("i8"), mode=ACT.CUDNN_ACTIVATION_RELU),
        lambda: cudnn.pooling.forward(x, window=12),
        lambda: cudnn.softmax.forward(x[0, 0, 0]),
        lambda: cudnn.convolution.forward(x, w, cupy.broadcast_to(x[:1, :, :7, :7], (2, 8, 7, 7))),
    ):
        with pytest.raises((ValueError, TypeError, CuDNNError)):
            bad()
    assert cupy.isfinite(cudnn.convolution.forward(x, w)).all()  # all is well afterwards


def test_threads_and_streams(real_cupy: Any) -> None:
    import threading

    cupy = real_cupy
    results: list[bool] = []

    def work(seed: int) -> None:
        with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.full((2, 8, 9, 9), float(seed), "f")
            w = cupy.ones((8, 8, 3, 3), "f")
            for _ in range(20):
                y = cudnn.convolution.forward(x, w)
            stream.synchronize()
            results.append(bool((y == 72 * seed).all()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
