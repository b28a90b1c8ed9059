"""ConvNeXt: Liu et al., "A ConvNet for the 2020s", 2022 (arXiv 2201.03545)."""

from __future__ import annotations

from typing import Any

from minidnn import layers as L
from minidnn.layers.parameter import filled

from ._common import IMAGENET, Weights, draw, normal, prepare, zeros

#: Of each stage: channels, blocks.
Stages = tuple[tuple[int, int], ...]
TINY: Stages = ((96, 3), (192, 3), (384, 9), (768, 3))
SMALL: Stages = ((96, 3), (192, 3), (384, 27), (768, 3))


class Permute(L.Layer):
    """Puts the axes of its input into another order."""

    def __init__(self, *axes: int) -> None:
        self.axes = axes

    def forward(self, x: Any) -> Any:
        return x.permute(*self.axes)


class LayerNorm2d(L.LayerNorm):
    """Normalizes the channels of each pixel; takes and gives (N, C, H, W)."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(L.Layer):
    """``x + layer_scale * block(x)``: a 7x7 convolution of each channel by itself, then two linear
    layers over the channels of each pixel.

    Takes and gives (N, channels, H, W); ``drop`` is the probability with which training leaves the
    block out for an image (stochastic depth).
    """

    def __init__(self, channels: int, drop: float) -> None:
        self.block = L.Sequential(
            L.Conv2d(channels, channels, 7, padding=3, groups=channels),
            Permute(0, 2, 3, 1),
            L.LayerNorm(channels, eps=1e-6),
            L.Linear(channels, 4 * channels),
            L.GELU(),
            L.Linear(4 * channels, channels),
            Permute(0, 3, 1, 2),
        )
        self.layer_scale = L.Parameter((channels, 1, 1), filled(1e-6))
        self.stochastic_depth = L.StochasticDepth(drop, "row")

    def forward(self, x: Any) -> Any:
        return x + self.stochastic_depth(self.layer_scale * self.block(x))


class ConvNeXt(L.Layer):
    """Takes (N, 3, H, W) of at least 32x32 and gives (N, num_classes).

    From the first block to the last, the probability of being left out in training grows from 0
    to ``drop``.
    """

    input_shape = IMAGENET

    def __init__(self, stages: Stages, drop: float, num_classes: int = 1000) -> None:
        features: list[L.Layer] = []
        inputs, number, last = 3, 0, sum(count for _, count in stages) - 1
        for channels, count in stages:
            if features:
                halving = L.Conv2d(inputs, channels, 2, stride=2)
                features.append(L.Sequential(LayerNorm2d(inputs, eps=1e-6), halving))
            else:
                stem = L.Conv2d(inputs, channels, 4, stride=4)
                features.append(L.Sequential(stem, LayerNorm2d(channels, eps=1e-6)))
            drops = (drop * (number + i) / last for i in range(count))
            features.append(L.Sequential(*(ConvNeXtBlock(channels, each) for each in drops)))
            inputs, number = channels, number + count
        self.features = L.Sequential(*features)
        self.avgpool = L.AdaptiveAvgPool2d(1)
        self.classifier = L.Sequential(
            LayerNorm2d(inputs, eps=1e-6), L.Flatten(), L.Linear(inputs, num_classes)
        )
        # torchvision cuts these off at -2 and 2, which is 100 standard deviations away.
        draw(self, L.Conv2d, normal(0.02), zeros)
        draw(self, L.Linear, normal(0.02), zeros)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.avgpool(self.features(x)))


def convnext_tiny(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> ConvNeXt:
    """ConvNeXt Tiny; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(ConvNeXt(TINY, 0.1, num_classes), "convnext_tiny", weights, seed)


def convnext_small(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> ConvNeXt:
    """ConvNeXt Small; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(ConvNeXt(SMALL, 0.4, num_classes), "convnext_small", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("convnext_tiny", "convnext_small")
