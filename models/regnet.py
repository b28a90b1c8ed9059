"""RegNet: Radosavovic et al., "Designing Network Design Spaces", 2020 (arXiv 2003.13678); Y has
squeeze-and-excitation blocks."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from minidnn import layers as L

from ._blocks import ConvNormActivation, SqueezeExcitation, multiple_of
from ._common import IMAGENET, Weights, draw, kaiming_normal, normal, prepare, zeros


class Design(NamedTuple):
    """The numbers of which a network of the family follows.

    Block i would have ``first + slope * i`` channels; rounded to ``first`` times a power of
    ``step``, and to multiples of 8, they form stages.  Convolutions are in groups of
    ``group_width`` channels.  ``squeeze`` is the part of a block's input channels that lie inside
    its squeeze-and-excitation; 0 is none.
    """

    depth: int
    first: int
    slope: float
    step: float
    group_width: int
    squeeze: float = 0.0

    def stages(self) -> list[tuple[int, int, int]]:
        """Channels, blocks and width of a group of each stage."""
        wanted = self.first + self.slope * np.arange(self.depth)
        power = np.round(np.log(wanted / self.first) / np.log(self.step))
        widths = 8 * np.round(self.first * self.step**power / 8).astype(int)
        stages = []
        for width, count in Counter(widths.tolist()).items():
            group = min(self.group_width, width)
            stages.append((multiple_of(group, width), count, group))
        return stages


DESIGNS = {
    "regnet_x_400mf": Design(22, 24, 24.48, 2.54, 16),
    "regnet_x_800mf": Design(16, 56, 35.73, 2.28, 16),
    "regnet_y_400mf": Design(16, 48, 27.89, 2.09, 8, squeeze=0.25),
    "regnet_y_800mf": Design(14, 56, 38.84, 2.4, 16, squeeze=0.25),
}


class RegNetBlock(L.Layer):
    """``relu(shortcut(x) + f(x))`` with a grouped 3x3 convolution between two of 1x1.

    Takes (N, inputs, H, W) and gives (N, width, H/stride, W/stride).
    """

    def __init__(self, inputs: int, width: int, stride: int, group: int, squeeze: float) -> None:
        self.proj = None
        if inputs != width or stride != 1:
            self.proj = ConvNormActivation(inputs, width, 1, stride, activation=None)
        layers: dict[str, L.Layer] = {
            "a": ConvNormActivation(inputs, width, 1),
            "b": ConvNormActivation(width, width, 3, stride, width // group),
        }
        if squeeze:
            layers["se"] = SqueezeExcitation(width, round(squeeze * inputs))
        layers["c"] = ConvNormActivation(width, width, 1, activation=None)
        self.f = L.Sequential(layers)
        self.activation = L.ReLU()

    def forward(self, x: Any) -> Any:
        return self.activation((x if self.proj is None else self.proj(x)) + self.f(x))


class RegNet(L.Layer):
    """Takes (N, 3, H, W) and gives (N, num_classes)."""

    input_shape = IMAGENET

    def __init__(self, design: Design, num_classes: int = 1000) -> None:
        inputs = 32
        self.stem = ConvNormActivation(3, inputs, stride=2)
        trunk = {}
        for number, (width, count, group) in enumerate(design.stages(), 1):
            stage = {}
            for i in range(count):
                block = RegNetBlock(inputs, width, 1 if i else 2, group, design.squeeze)
                stage[f"block{number}-{i}"] = block
                inputs = width
            trunk[f"block{number}"] = L.Sequential(stage)
        self.trunk_output = L.Sequential(trunk)
        self.avgpool = L.AdaptiveAvgPool2d(1)
        self.flatten = L.Flatten()
        self.fc = L.Linear(inputs, num_classes)
        draw(self, L.Conv2d, kaiming_normal("out"))
        draw(self, L.Linear, normal(0.01), zeros)

    def forward(self, x: Any) -> Any:
        return self.fc(self.flatten(self.avgpool(self.trunk_output(self.stem(x)))))


def _regnet(name: str, weights: Weights, num_classes: int, seed: int) -> RegNet:
    return prepare(RegNet(DESIGNS[name], num_classes), name, weights, seed)


def regnet_x_400mf(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> RegNet:
    """RegNet X of 400 million multiplications; the arguments are those of
    :func:`minidnn.models.get_model`.
    """
    return _regnet("regnet_x_400mf", weights, num_classes, seed)


def regnet_x_800mf(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> RegNet:
    """RegNet X of 800 million multiplications; the arguments are those of
    :func:`minidnn.models.get_model`.
    """
    return _regnet("regnet_x_800mf", weights, num_classes, seed)


def regnet_y_400mf(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> RegNet:
    """RegNet Y of 400 million multiplications; the arguments are those of
    :func:`minidnn.models.get_model`.
    """
    return _regnet("regnet_y_400mf", weights, num_classes, seed)


def regnet_y_800mf(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> RegNet:
    """RegNet Y of 800 million multiplications; the arguments are those of
    :func:`minidnn.models.get_model`.
    """
    return _regnet("regnet_y_800mf", weights, num_classes, seed)


if __name__ == "__main__":
    from ._script import main

    main(*DESIGNS)
