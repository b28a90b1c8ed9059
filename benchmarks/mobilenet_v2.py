"""MobileNetV2 (arXiv 1801.04381) of minidnn's layers, which the zoo does not have."""

from __future__ import annotations

from typing import Any

import minidnn as md
from minidnn import layers as L

#: Of each stage: by how much channels are widened inside, channels, blocks, the first one's stride.
STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


def _convolved(given: int, made: int, window: int, stride: int = 1, groups: int = 1) -> md.Layer:
    options: dict[str, Any] = {"stride": stride, "groups": groups, "bias": False}
    convolution = L.Conv2d(given, made, window, padding=window // 2, **options)
    return L.Sequential(convolution, L.BatchNorm2d(made), L.ReLU6())


class Block(md.Layer):
    """Widens, convolves each channel by itself, and narrows."""

    def __init__(self, given: int, made: int, stride: int, times: int) -> None:
        inner = given * times
        first = [_convolved(given, inner, 1)] if times > 1 else []
        self.conv = L.Sequential(
            *first,
            _convolved(inner, inner, 3, stride, inner),
            L.Conv2d(inner, made, 1, bias=False),
            L.BatchNorm2d(made),
        )
        self.adds = stride == 1 and given == made

    def forward(self, x: Any) -> Any:
        return x + self.conv(x) if self.adds else self.conv(x)


def mobilenet_v2(num_classes: int = 1000) -> md.Layer:
    """The network.

    Args:
        num_classes: how many classes it tells.
    """
    features, given = [_convolved(3, 32, 3, 2)], 32
    for times, made, blocks, stride in STAGES:
        for i in range(blocks):
            features.append(Block(given, made, stride if i == 0 else 1, times))
            given = made
    features.append(_convolved(given, 1280, 1))
    head = (L.AdaptiveAvgPool2d(1), L.Flatten(), L.Dropout(0.2), L.Linear(1280, num_classes))
    return L.Sequential(*features, *head)
