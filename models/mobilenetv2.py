"""MobileNetV2: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018
(arXiv 1801.04381)."""

from __future__ import annotations

from functools import partial
from typing import Any

from minidnn import layers as L

from ._blocks import ConvNormActivation, InvertedResidual
from ._common import IMAGENET, Weights, draw, kaiming_normal, normal, prepare, zeros

#: Of each stage: by how much blocks are wider inside, channels, blocks, the first one's stride.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

_conv = partial(ConvNormActivation, activation=L.ReLU6)


def _block(inputs: int, outputs: int, stride: int, expansion: int) -> InvertedResidual:
    """Widens, convolves each channel by itself, and narrows."""
    inner = inputs * expansion
    block = L.Sequential(
        *([_conv(inputs, inner, 1)] if expansion > 1 else []),
        _conv(inner, inner, 3, stride, groups=inner),
        L.Conv2d(inner, outputs, 1, bias=False),
        L.BatchNorm2d(outputs),
    )
    return InvertedResidual(block, stride == 1 and inputs == outputs, "conv")


class MobileNetV2(L.Layer):
    """Takes (N, 3, H, W) and gives (N, num_classes)."""

    input_shape = IMAGENET

    def __init__(self, num_classes: int = 1000) -> None:
        features: list[L.Layer] = [_conv(3, 32, stride=2)]
        inputs = 32
        for expansion, outputs, count, stride in STAGES:
            for i in range(count):
                features.append(_block(inputs, outputs, stride if i == 0 else 1, expansion))
                inputs = outputs
        self.features = L.Sequential(*features, _conv(inputs, 1280, 1))
        self.avgpool = L.AdaptiveAvgPool2d(1)
        self.flatten = L.Flatten()
        self.classifier = L.Sequential(L.Dropout(0.2), L.Linear(1280, num_classes))
        draw(self, L.Conv2d, kaiming_normal("out"))
        draw(self, L.Linear, normal(0.01), zeros)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.flatten(self.avgpool(self.features(x))))


def mobilenet_v2(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> MobileNetV2:
    """MobileNetV2; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(MobileNetV2(num_classes), "mobilenet_v2", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("mobilenet_v2")
