"""MobileNetV3: Howard et al., "Searching for MobileNetV3", 2019 (arXiv 1905.02244)."""

from __future__ import annotations

from functools import partial
from typing import Any

from minidnn import layers as L

from ._blocks import ConvNormActivation, InvertedResidual, SqueezeExcitation, multiple_of
from ._common import IMAGENET, Weights, draw, kaiming_normal, normal, prepare, zeros

#: Of each block: kernel, channels inside, channels, squeeze-and-excitation, activation, stride.
Block = tuple[int, int, int, bool, type[L.Layer], int]
LARGE: tuple[Block, ...] = (
    (3, 16, 16, False, L.ReLU, 1),
    (3, 64, 24, False, L.ReLU, 2),
    (3, 72, 24, False, L.ReLU, 1),
    (5, 72, 40, True, L.ReLU, 2),
    *[(5, 120, 40, True, L.ReLU, 1)] * 2,
    (3, 240, 80, False, L.Hardswish, 2),
    (3, 200, 80, False, L.Hardswish, 1),
    *[(3, 184, 80, False, L.Hardswish, 1)] * 2,
    (3, 480, 112, True, L.Hardswish, 1),
    (3, 672, 112, True, L.Hardswish, 1),
    (5, 672, 160, True, L.Hardswish, 2),
    *[(5, 960, 160, True, L.Hardswish, 1)] * 2,
)
SMALL: tuple[Block, ...] = (
    (3, 16, 16, True, L.ReLU, 2),
    (3, 72, 24, False, L.ReLU, 2),
    (3, 88, 24, False, L.ReLU, 1),
    (5, 96, 40, True, L.Hardswish, 2),
    *[(5, 240, 40, True, L.Hardswish, 1)] * 2,
    (5, 120, 48, True, L.Hardswish, 1),
    (5, 144, 48, True, L.Hardswish, 1),
    (5, 288, 96, True, L.Hardswish, 2),
    *[(5, 576, 96, True, L.Hardswish, 1)] * 2,
)

_conv = partial(ConvNormActivation, norm=partial(L.BatchNorm2d, eps=0.001, momentum=0.01))


def _block(inputs: int, block: Block) -> InvertedResidual:
    """Widens, convolves each channel by itself, weighs channels, and narrows."""
    kernel, inner, outputs, squeezes, activation, stride = block
    layers: list[L.Layer] = []
    if inner != inputs:
        layers.append(_conv(inputs, inner, 1, activation=activation))
    layers.append(_conv(inner, inner, kernel, stride, groups=inner, activation=activation))
    if squeezes:
        squeezed = multiple_of(8, inner // 4)
        layers.append(SqueezeExcitation(inner, squeezed, gate=L.Hardsigmoid))
    layers.append(_conv(inner, outputs, 1, activation=None))
    return InvertedResidual(L.Sequential(*layers), stride == 1 and inputs == outputs)


class MobileNetV3(L.Layer):
    """Takes (N, 3, H, W) and gives (N, num_classes); ``hidden`` features lie before the last
    layer."""

    input_shape = IMAGENET

    def __init__(self, blocks: tuple[Block, ...], hidden: int, num_classes: int = 1000) -> None:
        features: list[L.Layer] = [_conv(3, 16, stride=2, activation=L.Hardswish)]
        inputs = 16
        for block in blocks:
            features.append(_block(inputs, block))
            inputs = block[2]
        features.append(_conv(inputs, 6 * inputs, 1, activation=L.Hardswish))
        self.features = L.Sequential(*features)
        self.avgpool = L.AdaptiveAvgPool2d(1)
        self.flatten = L.Flatten()
        self.classifier = L.Sequential(
            L.Linear(6 * inputs, hidden),
            L.Hardswish(),
            L.Dropout(0.2),
            L.Linear(hidden, num_classes),
        )
        draw(self, L.Conv2d, kaiming_normal("out"), zeros)
        draw(self, L.Linear, normal(0.01), zeros)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.flatten(self.avgpool(self.features(x))))


def mobilenet_v3_large(
    *, weights: Weights = None, num_classes: int = 1000, seed: int = 0
) -> MobileNetV3:
    """The larger MobileNetV3; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(MobileNetV3(LARGE, 1280, num_classes), "mobilenet_v3_large", weights, seed)


def mobilenet_v3_small(
    *, weights: Weights = None, num_classes: int = 1000, seed: int = 0
) -> MobileNetV3:
    """The smaller MobileNetV3; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(MobileNetV3(SMALL, 1024, num_classes), "mobilenet_v3_small", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("mobilenet_v3_large", "mobilenet_v3_small")
