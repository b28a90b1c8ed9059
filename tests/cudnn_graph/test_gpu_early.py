"""No operand is read before the kernel in front has written it, though cuDNN's kernels begin early.

On Hopper cuDNN launches kernels that may start while the one in front of them still runs.  Its
runtime-fused ones wait for that one's end before they read image and filter, and not before they
read what point-wise operations join (cuDNN 9.19).
"""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.cudnn.graph import Graph
from tests.cudnn_graph.late import read_early

pytestmark = pytest.mark.gpu
MOST = 4


def made(shape: tuple[int, ...], dtype: str) -> Any:
    import torch

    x = torch.randn(shape, device="cuda").to(getattr(torch, dtype))
    return x.to(memory_format=torch.channels_last) if len(shape) == 4 else x


def convolution(dtype: str, channels: int, size: int, window: int) -> tuple[Graph, dict[str, Any]]:
    """ReLU of a convolution with a bias and a residual, channels last."""
    image = (16, channels, size, size)
    arrays = {
        "image": made(image, dtype),
        "filter": made((channels, channels, window, window), dtype) / (channels * window) ** 0.5,
        "bias": made((1, channels, 1, 1), dtype),
        "residual": made(image, dtype),
    }
    g = Graph()
    x, w, bias, residual = g.tensors(*arrays.values())
    y = g.relu(g.add(g.add(g.convolution(x, w, padding=window // 2), bias), residual))
    g.output(y, like=arrays["residual"])
    return g, arrays


def product(dtype: str, rows: int) -> tuple[Graph, dict[str, Any]]:
    """A matrix product with a bias and a residual."""
    arrays = {
        "left": made((1, rows, 256), dtype),
        "right": made((1, 256, 512), dtype) / 16,
        "bias": made((1, 1, 512), dtype),
        "residual": made((1, rows, 512), dtype),
    }
    g = Graph()
    a, b, bias, residual = g.tensors(*arrays.values())
    g.output(g.add(g.add(g.matmul(a, b), bias), residual), like=arrays["residual"])
    return g, arrays


def gradient(dtype: str, kind: str) -> tuple[Graph, dict[str, Any]]:
    """One of the gradients of a convolution."""
    shapes = {"image": (16, 128, 14, 14), "filter": (128, 128, 3, 3), "result": (16, 128, 14, 14)}
    names = ("result", "filter") if kind == "image" else ("result", "image")
    arrays = {name: made(shapes[name], dtype) / 16 for name in names}
    g = Graph()
    a, b = g.tensors(*arrays.values())
    find = g.convolution_backward_data if kind == "image" else g.convolution_backward_filter
    g.output(find(a, b, shapes[kind], padding=1), like=made(shapes[kind], dtype))
    return g, arrays


def pointwise(dtype: str) -> tuple[Graph, dict[str, Any]]:
    """ReLU of a sum."""
    arrays = {name: made((16, 128, 28, 28), dtype) for name in ("first", "second")}
    g = Graph()
    a, b = g.tensors(*arrays.values())
    g.output(g.relu(g.add(a, b)), like=arrays["first"])
    return g, arrays


def pooling(dtype: str) -> tuple[Graph, dict[str, Any]]:
    arrays = {"image": made((16, 128, 28, 28), dtype)}
    g = Graph()
    (x,) = g.tensors(*arrays.values())
    g.output(g.pool("max", x, 2, stride=2), like=made((16, 128, 14, 14), dtype))
    return g, arrays


def check(g: Graph, arrays: dict[str, Any], tf32: bool) -> None:
    import torch

    plans = g.plans(defaults=False, most=MOST, deterministic=True, tf32=tf32)
    assert plans
    spec = g.freeze()
    (tensor,) = (spec.tensors[i] for i in spec.outputs)
    kind = getattr(torch, tensor.dtype)
    out = torch.empty_strided(tensor.shape, tensor.strides, dtype=kind, device="cuda")
    found = {}
    for plan in plans:
        with plan:
            early = read_early(plan.bind(*arrays.values(), out=out), out, arrays)
            if early:
                found[str(plan)] = early
    assert not found, found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("channels", "size", "window"), [(64, 28, 3), (512, 7, 3), (256, 14, 1)])
def test_convolution(channels: int, size: int, window: int, dtype: str) -> None:
    check(*convolution(dtype, channels, size, window), tf32=True)


@pytest.mark.parametrize("rows", [1, 784])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_product(dtype: str, rows: int) -> None:
    check(*product(dtype, rows), tf32=True)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("kind", ["image", "filter"])
def test_gradients(kind: str, dtype: str) -> None:
    check(*gradient(dtype, kind), tf32=True)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("graph", [pointwise, pooling])
def test_without_contraction(graph: Any, dtype: str) -> None:
    g, arrays = graph(dtype)
    check(g, arrays, tf32=False)
