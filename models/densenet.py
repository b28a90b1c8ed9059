"""DenseNet-BC: Huang et al., "Densely Connected Convolutional Networks", 2016
(arXiv 1608.06993)."""

from __future__ import annotations

from typing import Any

from minidnn import layers as L

from ._common import IMAGENET, Weights, draw, kaiming_normal, prepare, zeros

#: Features that a layer expands to before its 3x3 convolution, by those that it adds.
BOTTLENECK = 4


class DenseLayer(L.Layer):
    """Computes ``growth`` new channels from all before and appends them.

    Takes (N, inputs, H, W) and gives (N, inputs + growth, H, W).  torchvision joins all
    channels anew in each layer; appending gives the same values, and one after another.
    """

    def __init__(self, inputs: int, growth: int) -> None:
        self.norm1 = L.BatchNorm2d(inputs)
        self.relu1 = L.ReLU()
        self.conv1 = L.Conv2d(inputs, BOTTLENECK * growth, 1, bias=False)
        self.norm2 = L.BatchNorm2d(BOTTLENECK * growth)
        self.relu2 = L.ReLU()
        self.conv2 = L.Conv2d(BOTTLENECK * growth, growth, 3, padding=1, bias=False)
        self.concat = L.Concat()

    def forward(self, x: Any) -> Any:
        y = self.conv1(self.relu1(self.norm1(x)))
        return self.concat(x, self.conv2(self.relu2(self.norm2(y))))


def _transition(inputs: int, outputs: int) -> L.Sequential:
    return L.Sequential(
        {
            "norm": L.BatchNorm2d(inputs),
            "relu": L.ReLU(),
            "conv": L.Conv2d(inputs, outputs, 1, bias=False),
            "pool": L.AvgPool2d(2),
        }
    )


class DenseNet(L.Layer):
    """Takes (N, 3, H, W) of at least 29x29 and gives (N, num_classes)."""

    input_shape = IMAGENET

    def __init__(
        self,
        growth: int,
        blocks: tuple[int, int, int, int],
        channels: int = 64,
        num_classes: int = 1000,
    ) -> None:
        features: dict[str, L.Layer] = {
            "conv0": L.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            "norm0": L.BatchNorm2d(channels),
            "relu0": L.ReLU(),
            "pool0": L.MaxPool2d(3, stride=2, padding=1),
        }
        for i, count in enumerate(blocks, 1):
            layers = (DenseLayer(channels + k * growth, growth) for k in range(count))
            features[f"denseblock{i}"] = L.Sequential(
                {f"denselayer{k}": layer for k, layer in enumerate(layers, 1)}
            )
            channels += count * growth
            if i < len(blocks):
                features[f"transition{i}"] = _transition(channels, channels // 2)
                channels //= 2
        features["norm5"] = L.BatchNorm2d(channels)
        self.features = L.Sequential(features)
        self.relu = L.ReLU()
        self.avgpool = L.AdaptiveAvgPool2d(1)
        self.flatten = L.Flatten()
        self.classifier = L.Linear(channels, num_classes)
        draw(self, L.Conv2d, kaiming_normal("in"))
        draw(self, L.Linear, bias=zeros)

    def forward(self, x: Any) -> Any:
        x = self.relu(self.features(x))
        return self.classifier(self.flatten(self.avgpool(x)))


def densenet121(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> DenseNet:
    """DenseNet with 121 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    network = DenseNet(32, (6, 12, 24, 16), num_classes=num_classes)
    return prepare(network, "densenet121", weights, seed)


def densenet161(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> DenseNet:
    """DenseNet with 161 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    network = DenseNet(48, (6, 12, 36, 24), 96, num_classes)
    return prepare(network, "densenet161", weights, seed)


def densenet169(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> DenseNet:
    """DenseNet with 169 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    network = DenseNet(32, (6, 12, 32, 32), num_classes=num_classes)
    return prepare(network, "densenet169", weights, seed)


def densenet201(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> DenseNet:
    """DenseNet with 201 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    network = DenseNet(32, (6, 12, 48, 32), num_classes=num_classes)
    return prepare(network, "densenet201", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("densenet121", "densenet161", "densenet169", "densenet201")
