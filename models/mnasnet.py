"""MNASNet B1: Tan et al., "MnasNet: Platform-Aware Neural Architecture Search for Mobile", 2018
(arXiv 1807.11626)."""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import Any

from minidnn import layers as L
from minidnn.layers.parameter import within

from ._blocks import InvertedResidual, multiple_of
from ._common import IMAGENET, Weights, draw, kaiming_normal, prepare, zeros

#: Of each stage: kernel, by how much blocks are wider inside, channels, blocks, the first's stride.
STAGES = (
    (3, 3, 24, 3, 2),
    (5, 3, 40, 3, 2),
    (5, 6, 80, 3, 2),
    (3, 6, 96, 2, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)

#: The paper's 0.9997 is the part that stays; here it is the part that moves.
_norm = partial(L.BatchNorm2d, momentum=1 - 0.9997)


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> tuple[L.Layer, ...]:
    padding = kernel // 2
    conv = L.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return conv, _norm(outputs), L.ReLU()


def _linear(inputs: int, outputs: int) -> tuple[L.Layer, ...]:
    return L.Conv2d(inputs, outputs, 1, bias=False), _norm(outputs)


def _block(inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> InvertedResidual:
    """Widens, convolves each channel by itself, and narrows."""
    inner = inputs * expansion
    layers = L.Sequential(
        *_conv(inputs, inner, 1),
        *_conv(inner, inner, kernel, stride, inner),
        *_linear(inner, outputs),
    )
    return InvertedResidual(layers, stride == 1 and inputs == outputs, "layers")


class MNASNet(L.Layer):
    """Takes (N, 3, H, W) and gives (N, num_classes); channels are in proportion to ``width``."""

    input_shape = IMAGENET

    def __init__(self, width: float, num_classes: int = 1000) -> None:
        stem, inputs = multiple_of(8, 32 * width), multiple_of(8, 16 * width)
        layers = [*_conv(3, stem, 3, 2), *_conv(stem, stem, 3, 1, stem), *_linear(stem, inputs)]
        for kernel, expansion, channels, count, stride in STAGES:
            outputs = multiple_of(8, channels * width)
            first = _block(inputs, outputs, kernel, stride, expansion)
            rest = (_block(outputs, outputs, kernel, 1, expansion) for _ in range(1, count))
            layers.append(L.Sequential(first, *rest))
            inputs = outputs
        self.layers = L.Sequential(*layers, *_conv(inputs, 1280, 1))
        self.avgpool = L.AdaptiveAvgPool2d(1)
        self.flatten = L.Flatten()
        self.classifier = L.Sequential(L.Dropout(0.2), L.Linear(1280, num_classes))
        draw(self, L.Conv2d, kaiming_normal("out"))
        draw(self, L.Linear, within(sqrt(3 / num_classes)), zeros)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.flatten(self.avgpool(self.layers(x))))


def mnasnet0_5(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> MNASNet:
    """MNASNet of half the width; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(MNASNet(0.5, num_classes), "mnasnet0_5", weights, seed)


def mnasnet1_0(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> MNASNet:
    """MNASNet; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(MNASNet(1.0, num_classes), "mnasnet1_0", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("mnasnet0_5", "mnasnet1_0")
