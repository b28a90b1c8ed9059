"""What the GPU tests of our contraction kernels share: a store, blocks of networks, weights."""

from __future__ import annotations

import numpy as np

import minidnn as md
from minidnn import layers as L

#: The distance of neighbouring numbers at 1.
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


class Forgetful:
    """A store without entries: else a choice would be remembered from another test's kernels."""

    def read(self, key: str) -> None:
        return None

    def put(self, key: str, data: bytes, *, label: str) -> None:
        pass


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
