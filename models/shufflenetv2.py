"""ShuffleNet V2: Ma et al., "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture
Design", 2018 (arXiv 1807.11164)."""

from __future__ import annotations

from typing import Any

from minidnn import layers as L

from ._blocks import ConvNormActivation
from ._common import IMAGENET, Weights, prepare

#: Blocks of the three stages.
COUNTS = (4, 8, 4)


def _depthwise(channels: int, stride: int) -> ConvNormActivation:
    return ConvNormActivation(channels, channels, 3, stride, channels, activation=None)


class ShuffleBlock(L.Layer):
    """Two branches, joined, whose channels then take turns.

    Takes (N, inputs, H, W) and gives (N, outputs, H/stride, W/stride).  Of stride 1, one branch is
    half of the input as it is; of stride 2, both branches read all of it.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        half = outputs // 2
        self.branch1 = None
        if stride > 1:
            self.branch1 = L.Sequential(
                *_depthwise(inputs, stride), *ConvNormActivation(inputs, half, 1)
            )
        self.branch2 = L.Sequential(
            *ConvNormActivation(inputs if stride > 1 else half, half, 1),
            *_depthwise(half, stride),
            *ConvNormActivation(half, half, 1),
        )
        self.concat = L.Concat()
        self.shuffle = L.ChannelShuffle(2)

    def forward(self, x: Any) -> Any:
        if self.branch1 is None:
            half = x.shape[1] // 2
            branches = x[:, :half], self.branch2(x[:, half:])
        else:
            branches = self.branch1(x), self.branch2(x)
        return self.shuffle(self.concat(*branches))


class ShuffleNetV2(L.Layer):
    """Takes (N, 3, H, W) and gives (N, num_classes); ``channels`` are those of the three stages."""

    input_shape = IMAGENET

    def __init__(self, channels: tuple[int, int, int], num_classes: int = 1000) -> None:
        inputs = 24
        self.conv1 = ConvNormActivation(3, inputs, stride=2)
        self.maxpool = L.MaxPool2d(3, stride=2, padding=1)
        for number, (outputs, count) in enumerate(zip(channels, COUNTS, strict=True), 2):
            rest = (ShuffleBlock(outputs, outputs, 1) for _ in range(1, count))
            stage = L.Sequential(ShuffleBlock(inputs, outputs, 2), *rest)
            setattr(self, f"stage{number}", stage)
            inputs = outputs
        self.conv5 = ConvNormActivation(inputs, 1024, 1)
        self.avgpool = L.AdaptiveAvgPool2d(1)
        self.flatten = L.Flatten()
        self.fc = L.Linear(1024, num_classes)

    def forward(self, x: Any) -> Any:
        for _, layer in self.children():  # in the order of __init__
            x = layer(x)
        return x


def shufflenet_v2_x0_5(
    *, weights: Weights = None, num_classes: int = 1000, seed: int = 0
) -> ShuffleNetV2:
    """ShuffleNet V2 of about half the channels; the arguments are those of
    :func:`minidnn.models.get_model`.
    """
    network = ShuffleNetV2((48, 96, 192), num_classes)
    return prepare(network, "shufflenet_v2_x0_5", weights, seed)


def shufflenet_v2_x1_0(
    *, weights: Weights = None, num_classes: int = 1000, seed: int = 0
) -> ShuffleNetV2:
    """ShuffleNet V2; the arguments are those of :func:`minidnn.models.get_model`."""
    network = ShuffleNetV2((116, 232, 464), num_classes)
    return prepare(network, "shufflenet_v2_x1_0", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("shufflenet_v2_x0_5", "shufflenet_v2_x1_0")
