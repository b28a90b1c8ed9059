"""Element-wise operations, matrix products, pooling and reductions against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minidnn.cudnn.graph import Graph, Plan
from minidnn.errors import UnsupportedError
from tests.cudnn_graph.cases import TOLERANCE, error, tensor

pytestmark = pytest.mark.gpu
DTYPES = ("float16", "bfloat16", "float32")


def built(g: Graph, may_lack: bool = False, **constraints: Any) -> Plan:
    """The plan; ``may_lack`` says that cuDNN 9.19 has none, so that newer ones may skip less."""
    try:
        return g.build(choose="heuristic", **constraints)
    except UnsupportedError as reason:
        if not may_lack:
            raise
        pytest.skip(f"cuDNN has no engine: {str(reason)[:300]}")


def unary(name: str) -> Callable[[Any], Any]:
    import torch

    functional = torch.nn.functional
    table: dict[str, Callable[[Any], Any]] = {
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "gelu": functional.gelu,
        "gelu_approx_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "elu": functional.elu,
        "softplus": functional.softplus,
        "swish": functional.silu,
        "exp": torch.exp,
        "abs": torch.abs,
        "neg": torch.neg,
        "ceil": torch.ceil,
        "floor": torch.floor,
        "sin": torch.sin,
        "cos": torch.cos,
        "erf": torch.erf,
        "identity": lambda x: x,
    }
    return table[name]


UNARY = [
    "relu",
    "sigmoid",
    "tanh",
    "gelu",
    "gelu_approx_tanh",
    "elu",
    "softplus",
    "swish",
    "exp",
    "abs",
    "neg",
    "ceil",
    "floor",
    "sin",
    "cos",
    "erf",
    "identity",
]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: str, layout: str) -> None:
    x = tensor((2, 16, 7, 9), dtype, layout, False, "random")
    out = tensor((2, 16, 7, 9), dtype, layout, False, "nan")
    g = Graph()
    g.output(g.pointwise(name, g.tensor(x)), like=out)
    built(g)(x, out=out)
    # an approximate exp or tanh of the hardware is good to a few units in 1e-4 at worst
    assert error(out, unary(name)(x.double())) < max(TOLERANCE[dtype], 1e-5), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min"])
def test_binary_broadcasts(name: str, dtype: str) -> None:
    import torch

    x = tensor((2, 16, 7, 9), dtype, "NHWC", False, "random")
    b = tensor((1, 16, 1, 1), dtype, "NHWC", False, "random")
    out = tensor((2, 16, 7, 9), dtype, "NHWC", False, "nan")
    g = Graph()
    xt, bt = g.tensors(x, b)
    g.output(g.pointwise(name, xt, bt), like=out)
    built(g)(x, b, out=out)
    table = {"max": torch.maximum, "min": torch.minimum}
    function = table.get(name) or getattr(torch, name)
    assert error(out, function(x.double(), b.double())) < TOLERANCE[dtype]


def test_scalars_are_handed_over_by_value() -> None:
    x = tensor((2, 16, 7, 9), "float32", "NHWC", False, "random")
    out = tensor((2, 16, 7, 9), "float32", "NHWC", False, "nan")
    g = Graph()
    g.output(g.tensor(x) * 0.25, like=out)
    built(g)(x, out=out)
    assert error(out, x.double() * 0.25) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["relu", "sigmoid", "tanh", "swish"])
def test_gradients_of_activations(name: str, dtype: str) -> None:
    import torch

    dy = tensor((2, 16, 7, 9), dtype, "NHWC", False, "random")
    x = tensor((2, 16, 7, 9), dtype, "NHWC", False, "random")
    out = tensor((2, 16, 7, 9), dtype, "NHWC", False, "nan")
    g = Graph()
    g.output(g.pointwise(f"{name}_bwd", *g.tensors(dy, x)), like=out)
    built(g)(dy, x, out=out)
    leaf = x.double().requires_grad_()
    unary(name)(leaf).backward(dy.double())
    assert leaf.grad is not None
    assert error(out, leaf.grad) < max(TOLERANCE[dtype], 1e-5)
    assert not torch.isnan(out).any()


@pytest.mark.parametrize("dtype", [*DTYPES, "tf32"])
@pytest.mark.parametrize("shape", [(1, 8, 16, 8), (3, 64, 32, 48), (2, 128, 256, 64)])
@pytest.mark.parametrize("epilogue", [False, True])
def test_matmul(shape: tuple[int, int, int, int], dtype: str, epilogue: bool) -> None:
    import torch

    batch, m, k, n = shape
    kind = getattr(torch, "float32" if dtype == "tf32" else dtype)
    a = torch.randn(batch, m, k, device="cuda").to(kind)
    b = torch.randn(batch, k, n, device="cuda").to(kind)
    bias = torch.randn(1, 1, n, device="cuda").to(kind)
    out = torch.full((batch, m, n), float("nan"), device="cuda", dtype=kind)
    wanted = a.double() @ b.double()
    g = Graph()
    at, bt = g.tensors(a, b)
    c = at @ bt
    arrays = [a, b]
    if epilogue:
        c = g.relu(c + g.tensor(bias))
        arrays.append(bias)
        wanted = (wanted + bias.double()).relu()
    g.output(c, like=out)
    # exact float32 products: only cuBLASLt's engine, which rounds to TF32 without saying so
    built(g, may_lack=dtype == "float32", tf32=dtype == "tf32")(*arrays, out=out)
    assert error(out, wanted) < TOLERANCE[dtype]


POOLS = [(3, 2, 1), (2, 2, 0), (3, 1, 1), ((2, 3), (1, 2), (0, 1)), (7, 7, 0)]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["max", "average", "average_include_padding"])
@pytest.mark.parametrize("pool", POOLS)
def test_pooling(pool: Any, mode: str, dtype: str, layout: str) -> None:
    import torch

    window, stride, padding = pool
    x = tensor((2, 16, 14, 15), dtype, layout, False, "random")
    functional = torch.nn.functional
    if mode == "max":
        wanted = functional.max_pool2d(x.double(), window, stride, padding)
    else:
        include = mode == "average_include_padding"
        wanted = functional.avg_pool2d(
            x.double(), window, stride, padding, count_include_pad=include
        )
    out = tensor(tuple(wanted.shape), dtype, layout, False, "nan")
    g = Graph()
    g.output(g.pool(mode, g.tensor(x), window, stride=stride, padding=padding), like=out)
    built(g)(x, out=out)
    assert error(out, wanted) < TOLERANCE[dtype]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (0, 1, 2, 3)])
@pytest.mark.parametrize("operator", ["add", "max", "min", "avg"])
def test_reductions(operator: str, axes: tuple[int, ...], dtype: str, layout: str) -> None:
    import torch

    x = tensor((2, 32, 14, 15), dtype, layout, False, "random")
    functions: dict[str, Callable[..., Any]] = {
        "add": torch.sum,
        "max": torch.amax,
        "min": torch.amin,
        "avg": torch.mean,
    }
    wanted = functions[operator](x.double(), dim=axes, keepdim=True)
    g = Graph()
    y = g.output(g.reduce(operator, g.tensor(x), axes), "float32")
    out = torch.full(y.shape, float("nan"), device="cuda")
    out = out.as_strided(y.shape, y.strides)
    built(g, may_lack=operator == "avg" or layout == "NCHW")(x, out=out)
    assert error(out, wanted) < 1e-5


def test_statistics_behind_a_convolution() -> None:
    import torch

    x = tensor((4, 64, 14, 15), "float16", "NHWC", False, "random")
    w = tensor((32, 64, 3, 3), "float16", "NHWC", False, "random")
    g = Graph()
    y = g.convolution(*g.tensors(x, w), padding=1)
    for result in (g.output(y, "float16", layout="NHWC"), *g.statistics(y)):
        g.output(result)
    result, sums, squares = built(g, may_lack=True)(x, w)
    stored = torch.as_tensor(result, device="cuda").double()
    assert error(torch.as_tensor(sums, device="cuda"), stored.sum((0, 2, 3), True)) < 1e-3
    assert error(torch.as_tensor(squares, device="cuda"), (stored**2).sum((0, 2, 3), True)) < 1e-3
