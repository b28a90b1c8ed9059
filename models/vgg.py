"""VGG: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition", 2014 (arXiv 1409.1556)."""

from __future__ import annotations

from typing import Any

from minidnn import layers as L

from ._common import IMAGENET, Weights, draw, kaiming_normal, normal, prepare, zeros

#: 3x3 convolutions in each of the five stages.
STAGES = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
#: Channels of the stages.
CHANNELS = (64, 128, 256, 512, 512)


class VGG(L.Layer):
    """Takes (N, 3, H, W) of at least 32x32 and gives (N, num_classes)."""

    input_shape = IMAGENET

    def __init__(
        self, stages: tuple[int, ...], batch_norm: bool = False, num_classes: int = 1000
    ) -> None:
        self.features = L.Sequential(*_features(stages, batch_norm))
        self.avgpool = L.AdaptiveAvgPool2d(7)
        self.flatten = L.Flatten()
        self.classifier = L.Sequential(
            L.Linear(512 * 7 * 7, 4096),
            L.ReLU(),
            L.Dropout(),
            L.Linear(4096, 4096),
            L.ReLU(),
            L.Dropout(),
            L.Linear(4096, num_classes),
        )
        draw(self, L.Conv2d, kaiming_normal("out"), zeros)
        draw(self, L.Linear, normal(0.01), zeros)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.flatten(self.avgpool(self.features(x))))


def _features(stages: tuple[int, ...], batch_norm: bool) -> list[L.Layer]:
    layers: list[L.Layer] = []
    inputs = 3
    for count, channels in zip(stages, CHANNELS, strict=True):
        for _ in range(count):
            layers.append(L.Conv2d(inputs, channels, 3, padding=1))
            if batch_norm:
                layers.append(L.BatchNorm2d(channels))
            layers.append(L.ReLU())
            inputs = channels
        layers.append(L.MaxPool2d(2))
    return layers


def _vgg(name: str, weights: Weights, num_classes: int, seed: int) -> VGG:
    stages = STAGES[name.removesuffix("_bn")]
    return prepare(VGG(stages, name.endswith("_bn"), num_classes), name, weights, seed)


def vgg11(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> VGG:
    """VGG with 11 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    return _vgg("vgg11", weights, num_classes, seed)


def vgg11_bn(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> VGG:
    """VGG with 11 layers and batch normalization; the arguments are those of
    :func:`minidnn.models.get_model`.
    """
    return _vgg("vgg11_bn", weights, num_classes, seed)


def vgg13(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> VGG:
    """VGG with 13 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    return _vgg("vgg13", weights, num_classes, seed)


def vgg13_bn(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> VGG:
    """VGG with 13 layers and batch normalization; the arguments are those of
    :func:`minidnn.models.get_model`.
    """
    return _vgg("vgg13_bn", weights, num_classes, seed)


def vgg16(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> VGG:
    """VGG with 16 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    return _vgg("vgg16", weights, num_classes, seed)


def vgg16_bn(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> VGG:
    """VGG with 16 layers and batch normalization; the arguments are those of
    :func:`minidnn.models.get_model`.
    """
    return _vgg("vgg16_bn", weights, num_classes, seed)


def vgg19(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> VGG:
    """VGG with 19 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    return _vgg("vgg19", weights, num_classes, seed)


def vgg19_bn(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> VGG:
    """VGG with 19 layers and batch normalization; the arguments are those of
    :func:`minidnn.models.get_model`.
    """
    return _vgg("vgg19_bn", weights, num_classes, seed)


if __name__ == "__main__":
    from ._script import main

    main(*(f"{name}{suffix}" for name in STAGES for suffix in ("", "_bn")))
