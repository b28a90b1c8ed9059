"""EfficientNet: Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural
Networks", 2019 (arXiv 1905.11946), and "EfficientNetV2", 2021 (arXiv 2104.00298)."""

from __future__ import annotations

from functools import partial
from math import ceil, sqrt
from typing import Any, NamedTuple

from minidnn import layers as L
from minidnn.layers.parameter import within

from ._blocks import ConvNormActivation, InvertedResidual, Norm, SqueezeExcitation, multiple_of
from ._common import Weights, draw, kaiming_normal, prepare, zeros


class Stage(NamedTuple):
    """Blocks of the same channels: by how much they are wider inside, their kernel, the first
    one's stride, its input channels, their channels, how many they are, and whether one
    convolution widens and convolves (V2's fused blocks)."""

    expansion: int
    kernel: int
    stride: int
    inputs: int
    outputs: int
    blocks: int
    fused: bool = False

    def scaled(self, width: float, depth: float) -> Stage:
        """The stage of a larger variant: more channels and more blocks."""
        inputs, outputs = (multiple_of(8, width * n) for n in (self.inputs, self.outputs))
        return self._replace(inputs=inputs, outputs=outputs, blocks=ceil(self.blocks * depth))


B0 = (
    Stage(1, 3, 1, 32, 16, 1),
    Stage(6, 3, 2, 16, 24, 2),
    Stage(6, 5, 2, 24, 40, 2),
    Stage(6, 3, 2, 40, 80, 3),
    Stage(6, 5, 1, 80, 112, 3),
    Stage(6, 5, 2, 112, 192, 4),
    Stage(6, 3, 1, 192, 320, 1),
)
V2_S = (
    Stage(1, 3, 1, 24, 24, 2, fused=True),
    Stage(4, 3, 2, 24, 48, 4, fused=True),
    Stage(4, 3, 2, 48, 64, 4, fused=True),
    Stage(4, 3, 2, 64, 128, 6),
    Stage(6, 3, 1, 128, 160, 9),
    Stage(6, 3, 2, 160, 256, 15),
)


def _block(stage: Stage, inputs: int, stride: int, norm: Norm, drop: float) -> InvertedResidual:
    """Widens, convolves each channel by itself, weighs channels, and narrows; fused, it widens and
    convolves, and narrows."""
    conv = partial(ConvNormActivation, norm=norm, activation=L.SiLU)
    _, kernel, _, _, outputs, _, fused = stage
    inner = multiple_of(8, inputs * stage.expansion)
    layers: list[L.Layer] = []
    if fused:
        layers.append(conv(inputs, inner, kernel, stride))
    else:
        if inner != inputs:
            layers.append(conv(inputs, inner, 1))
        layers.append(conv(inner, inner, kernel, stride, groups=inner))
        layers.append(SqueezeExcitation(inner, max(1, inputs // 4), L.SiLU))
    if not fused or inner != inputs:
        layers.append(conv(inner, outputs, 1, activation=None))
    adds = stride == 1 and inputs == outputs
    return InvertedResidual(L.Sequential(*layers), adds, drop=drop)


class EfficientNet(L.Layer):
    """Takes (N, 3, H, W) and gives (N, num_classes); made for pictures of ``size``."""

    def __init__(
        self,
        stages: tuple[Stage, ...],
        size: int,
        dropout: float = 0.2,
        num_classes: int = 1000,
        norm: Norm = L.BatchNorm2d,
        features: int | None = None,
    ) -> None:
        self.input_shape = (3, size, size)
        conv = partial(ConvNormActivation, norm=norm, activation=L.SiLU)
        layers: list[L.Layer] = [conv(3, stages[0].inputs, stride=2)]
        total, number = sum(stage.blocks for stage in stages), 0
        for stage in stages:
            blocks = []
            for i in range(stage.blocks):
                inputs, stride = (stage.outputs, 1) if i else (stage.inputs, stage.stride)
                blocks.append(_block(stage, inputs, stride, norm, 0.2 * number / total))
                number += 1
            layers.append(L.Sequential(*blocks))
        last = stages[-1].outputs
        features = 4 * last if features is None else features
        self.features = L.Sequential(*layers, conv(last, features, 1))
        self.avgpool = L.AdaptiveAvgPool2d(1)
        self.flatten = L.Flatten()
        self.classifier = L.Sequential(L.Dropout(dropout), L.Linear(features, num_classes))
        draw(self, L.Conv2d, kaiming_normal("out"), zeros)
        draw(self, L.Linear, within(1 / sqrt(num_classes)), zeros)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.flatten(self.avgpool(self.features(x))))


#: Of each variant: width, depth, rows and columns of a picture, dropout.
_VARIANTS = {
    "efficientnet_b0": (1.0, 1.0, 224, 0.2),
    "efficientnet_b1": (1.0, 1.1, 240, 0.2),
    "efficientnet_b2": (1.1, 1.2, 288, 0.3),
    "efficientnet_b3": (1.2, 1.4, 300, 0.3),
    "efficientnet_b4": (1.4, 1.8, 380, 0.4),
}


def _scaled(name: str, weights: Weights, num_classes: int, seed: int) -> EfficientNet:
    width, depth, size, dropout = _VARIANTS[name]
    stages = tuple(stage.scaled(width, depth) for stage in B0)
    return prepare(EfficientNet(stages, size, dropout, num_classes), name, weights, seed)


def efficientnet_b0(
    *, weights: Weights = None, num_classes: int = 1000, seed: int = 0
) -> EfficientNet:
    """EfficientNet B0; the arguments are those of :func:`minidnn.models.get_model`."""
    return _scaled("efficientnet_b0", weights, num_classes, seed)


def efficientnet_b1(
    *, weights: Weights = None, num_classes: int = 1000, seed: int = 0
) -> EfficientNet:
    """EfficientNet B1; the arguments are those of :func:`minidnn.models.get_model`."""
    return _scaled("efficientnet_b1", weights, num_classes, seed)


def efficientnet_b2(
    *, weights: Weights = None, num_classes: int = 1000, seed: int = 0
) -> EfficientNet:
    """EfficientNet B2; the arguments are those of :func:`minidnn.models.get_model`."""
    return _scaled("efficientnet_b2", weights, num_classes, seed)


def efficientnet_b3(
    *, weights: Weights = None, num_classes: int = 1000, seed: int = 0
) -> EfficientNet:
    """EfficientNet B3; the arguments are those of :func:`minidnn.models.get_model`."""
    return _scaled("efficientnet_b3", weights, num_classes, seed)


def efficientnet_b4(
    *, weights: Weights = None, num_classes: int = 1000, seed: int = 0
) -> EfficientNet:
    """EfficientNet B4; the arguments are those of :func:`minidnn.models.get_model`."""
    return _scaled("efficientnet_b4", weights, num_classes, seed)


def efficientnet_v2_s(
    *, weights: Weights = None, num_classes: int = 1000, seed: int = 0
) -> EfficientNet:
    """EfficientNetV2 S; the arguments are those of :func:`minidnn.models.get_model`."""
    norm = partial(L.BatchNorm2d, eps=0.001)
    network = EfficientNet(V2_S, 384, 0.2, num_classes, norm, 1280)
    return prepare(network, "efficientnet_v2_s", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main(*_VARIANTS, "efficientnet_v2_s")
