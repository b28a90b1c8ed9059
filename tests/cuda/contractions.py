"""What the GPU tests of our contraction kernels share: a store, blocks of networks, weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction.kernel_registry import KERNELS
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tile_choice import DIVISIONS, PARTS, TILES, slabs_of
from minidnn.graph.evaluate import evaluate
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph

DEPTHWISE, DIRECT = KERNELS["depthwise"], KERNELS["direct"]
HALO, ROWS, STREAM = KERNELS["halo"], KERNELS["rows"], KERNELS["stream"]
TILE, WINOGRAD = KERNELS["tile"], KERNELS["winograd"]

#: The distance of neighbouring numbers at 1.
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


class Forgetful:
    """A store without entries: else a choice would be remembered from another test's kernels."""

    def read(self, key: str) -> None:
        return None

    def put(self, key: str, data: bytes, *, label: str) -> None:
        pass


def within(problem: ContractionProblem, choice: int) -> int:
    """The choice of tiles with no more parts than there are slabs of products."""
    shape, parts = DIVISIONS[choice]
    most = max(one for one in PARTS if one <= min(parts, slabs_of(problem, shape)))
    return DIVISIONS.number(TILES.index(shape), most)


def residual(channels: int, window: int) -> md.Layer:
    """A convolution whose input is added to its result, on 14 x 14."""
    x = md.Input((channels, 14, 14))
    convolution = L.Conv2d(channels, channels, window, padding=window // 2)
    return md.Model(x, L.ReLU()(convolution(x) + x))


def dense(channels: int) -> md.Layer:
    """Three layers of a DenseNet's block on 14 x 14, and its transition."""
    x = md.Input((channels, 14, 14))
    y = x
    for count in range(channels, channels + 48, 16):
        z = L.ReLU()(L.BatchNorm2d(count)(y))
        z = L.ReLU()(L.BatchNorm2d(24)(L.Conv2d(count, 24, 1, bias=False)(z)))
        y = L.Concat()(y, L.Conv2d(24, 16, 3, padding=1, bias=False)(z))
    last = L.ReLU()(L.BatchNorm2d(channels + 48)(y))
    return md.Model(x, L.Conv2d(channels + 48, 8, 1)(last))


def drawn(
    random: np.random.Generator, unit: int = 1
) -> tuple[Callable[[], md.Layer], tuple[int, ...]]:
    """A convolution of any geometry whose image has pixels left, channels in whole units, and the
    shape of its images."""
    channels, filters = (unit * int(random.integers(1, most // unit)) for most in (24, 80))
    batch = int(random.integers(1, 4))
    window, stride, dilation = (random.integers(1, most, 2).tolist() for most in (6, 4, 3))
    padding = [tuple(pair) for pair in random.integers(0, 4, (2, 2)).tolist()]
    if window == [1, 1]:
        padding = [(0, 0), (0, 0)]
    reach = [
        d * (k - 1) + 1 - a - b for d, k, (a, b) in zip(dilation, window, padding, strict=True)
    ]
    rows, columns = (max(1, r) + int(random.integers(0, 9)) for r in reach)
    more: dict[str, Any] = {"stride": tuple(stride), "dilation": tuple(dilation)}
    more |= {"padding": tuple(padding), "bias": bool(random.integers(2))}
    net = L.Sequential(L.Conv2d(channels, filters, tuple(window), **more), L.ReLU())
    return lambda: net, (batch, channels, rows, columns)


def draw_weights(net: md.Layer, random: np.random.Generator) -> None:
    """Normal weights that keep the variance, and variances from 0.5 to 2."""
    state = {
        key: random.uniform(0.5, 2.0, array.shape).astype(np.float32)
        if key.endswith("running_var")
        else (random.standard_normal(array.shape) / np.sqrt(max(1, array[0].size))).astype(
            array.dtype
        )
        for key, array in net.state_dict().items()
        if array.ndim
    }
    net.load_state_dict(state, strict=False)


def far_apart(x: np.ndarray) -> np.ndarray:
    """Images whose every second column is so far from nought that SiLU divides by infinity there:
    some threads of a warp call a function for that, and are to meet the others afterwards."""
    x[..., ::2] *= 200.0
    return x


def check_numbers(net: md.Layer, shape: tuple[int, ...], dtype: str, algorithm: str) -> None:
    """Draws weights and images; holds the network on the GPU, where it must be computed by that
    algorithm of ours, which tells its occupancy, to float64, and a second call to the bits of the
    first."""
    random = np.random.default_rng(0)
    draw_weights(net, random)
    x = rounded_to(dtype, random.standard_normal(shape).astype(np.float32)).astype(np.float32)
    # The first and the last images are compared: the reference takes its time.
    few = np.unique([0, 1, shape[0] - 1]) if shape[0] > 4 else np.arange(shape[0])
    graph = to_graph(net, (len(few), *shape[1:]))
    (expected,) = evaluate(graph, [x[few]], "float64")
    exe = md.compile(net, shape, device="cuda", precision=dtype)
    lines = exe.explain(measure=True).splitlines()
    assert any(algorithm in line and "% occupancy" in line for line in lines)
    result = np.asarray(exe(x), np.float64)
    assert np.isfinite(result).all()
    scale = np.abs(expected).max()
    assert np.abs(result[few] - expected).max() <= 6 * EPSILON[dtype] * scale
    np.testing.assert_array_equal(np.asarray(exe(x), np.float64), result)
