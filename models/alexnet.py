"""AlexNet as torchvision has it: Krizhevsky, "One weird trick for parallelizing convolutional
neural networks", 2014 (arXiv 1404.5997)."""

from __future__ import annotations

from typing import Any

from minidnn import layers as L

from ._common import IMAGENET, Weights, prepare


class AlexNet(L.Layer):
    """Takes (N, 3, H, W) of at least 63x63 and gives (N, num_classes)."""

    input_shape = IMAGENET

    def __init__(self, num_classes: int = 1000) -> None:
        self.features = L.Sequential(
            L.Conv2d(3, 64, 11, stride=4, padding=2),
            L.ReLU(),
            L.MaxPool2d(3, stride=2),
            L.Conv2d(64, 192, 5, padding=2),
            L.ReLU(),
            L.MaxPool2d(3, stride=2),
            L.Conv2d(192, 384, 3, padding=1),
            L.ReLU(),
            L.Conv2d(384, 256, 3, padding=1),
            L.ReLU(),
            L.Conv2d(256, 256, 3, padding=1),
            L.ReLU(),
            L.MaxPool2d(3, stride=2),
        )
        self.avgpool = L.AdaptiveAvgPool2d(6)
        self.flatten = L.Flatten()
        self.classifier = L.Sequential(
            L.Dropout(),
            L.Linear(256 * 6 * 6, 4096),
            L.ReLU(),
            L.Dropout(),
            L.Linear(4096, 4096),
            L.ReLU(),
            L.Linear(4096, num_classes),
        )

    def forward(self, x: Any) -> Any:
        return self.classifier(self.flatten(self.avgpool(self.features(x))))


def alexnet(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> AlexNet:
    """AlexNet; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(AlexNet(num_classes), "alexnet", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("alexnet")
