"""SqueezeNet: Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and
<0.5MB model size", 2016 (arXiv 1602.07360); 1.1 is the authors' later, cheaper version."""

from __future__ import annotations

from typing import Any

from minidnn import layers as L

from ._common import IMAGENET, Weights, draw, kaiming_uniform, normal, prepare, zeros


class Fire(L.Layer):
    """A 1x1 convolution to few channels, then a 1x1 and a 3x3 from them, joined.

    Takes (N, inputs, H, W) and gives (N, 2 * expand, H, W).
    """

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        self.squeeze = L.Conv2d(inputs, squeeze, 1)
        self.squeeze_activation = L.ReLU()
        self.expand1x1 = L.Conv2d(squeeze, expand, 1)
        self.expand1x1_activation = L.ReLU()
        self.expand3x3 = L.Conv2d(squeeze, expand, 3, padding=1)
        self.expand3x3_activation = L.ReLU()
        self.concat = L.Concat()

    def forward(self, x: Any) -> Any:
        x = self.squeeze_activation(self.squeeze(x))
        return self.concat(
            self.expand1x1_activation(self.expand1x1(x)),
            self.expand3x3_activation(self.expand3x3(x)),
        )


class SqueezeNet(L.Layer):
    """Takes (N, 3, H, W) of at least 17x17 (1.1) or 21x21 (1.0) and gives (N, num_classes)."""

    input_shape = IMAGENET

    def __init__(self, features: L.Sequential, num_classes: int = 1000) -> None:
        self.features = features
        last = L.Conv2d(512, num_classes, 1)
        self.classifier = L.Sequential(L.Dropout(), last, L.ReLU(), L.AdaptiveAvgPool2d(1))
        self.flatten = L.Flatten()
        draw(self, L.Conv2d, kaiming_uniform, zeros)
        last.weight.initializer = normal(0.01)

    def forward(self, x: Any) -> Any:
        return self.flatten(self.classifier(self.features(x)))


def _features_1_0() -> L.Sequential:
    return L.Sequential(
        L.Conv2d(3, 96, 7, stride=2),
        L.ReLU(),
        L.MaxPool2d(3, stride=2, ceil_mode=True),
        Fire(96, 16, 64),
        Fire(128, 16, 64),
        Fire(128, 32, 128),
        L.MaxPool2d(3, stride=2, ceil_mode=True),
        Fire(256, 32, 128),
        Fire(256, 48, 192),
        Fire(384, 48, 192),
        Fire(384, 64, 256),
        L.MaxPool2d(3, stride=2, ceil_mode=True),
        Fire(512, 64, 256),
    )


def _features_1_1() -> L.Sequential:
    return L.Sequential(
        L.Conv2d(3, 64, 3, stride=2),
        L.ReLU(),
        L.MaxPool2d(3, stride=2, ceil_mode=True),
        Fire(64, 16, 64),
        Fire(128, 16, 64),
        L.MaxPool2d(3, stride=2, ceil_mode=True),
        Fire(128, 32, 128),
        Fire(256, 32, 128),
        L.MaxPool2d(3, stride=2, ceil_mode=True),
        Fire(256, 48, 192),
        Fire(384, 48, 192),
        Fire(384, 64, 256),
        Fire(512, 64, 256),
    )


def squeezenet1_0(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> SqueezeNet:
    """SqueezeNet 1.0; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(SqueezeNet(_features_1_0(), num_classes), "squeezenet1_0", weights, seed)


def squeezenet1_1(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> SqueezeNet:
    """SqueezeNet 1.1; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(SqueezeNet(_features_1_1(), num_classes), "squeezenet1_1", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("squeezenet1_0", "squeezenet1_1")
