"""A small residual network that reads scikit-learn's handwritten digits.

Its weights lie beside this file; ``demo/digits.py --weights`` trained them on the first 1,437 of
the 1,797 images and left out the last 360.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minidnn import layers as L

from ._common import Weights, prepare

#: The trained weights of ``digits()``, under 300 KB, float32.
WEIGHTS = Path(__file__).with_name("digits.safetensors")


class Block(L.Layer):
    """Two 3x3 convolutions and a shortcut: ``relu(body(x) + shortcut(x))``.

    Takes (N, inputs, H, W) and gives (N, outputs, H/stride, W/stride).
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        self.conv1 = L.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = L.BatchNorm2d(outputs)
        self.relu = L.ReLU()
        self.conv2 = L.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = L.BatchNorm2d(outputs)
        self.shortcut: L.Layer = L.Identity()
        if stride != 1 or inputs != outputs:
            conv = L.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = L.Sequential(conv, L.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.shortcut(x))


class Digits(L.Layer):
    """Takes (N, 1, 8, 8), ink from 0 to 1, and gives (N, num_classes), a score for each."""

    #: One image, as (channels, rows, columns).
    input_shape = (1, 8, 8)

    def __init__(self, width: int = 20, num_classes: int = 10) -> None:
        self.stem = L.Sequential(
            L.Conv2d(1, width, 3, padding=1, bias=False), L.BatchNorm2d(width), L.ReLU()
        )
        self.blocks = L.Sequential(
            Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1)
        )
        self.pool = L.AdaptiveAvgPool2d(1)
        self.flatten = L.Flatten()
        self.head = L.Linear(2 * width, num_classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.flatten(self.pool(self.blocks(self.stem(x)))))


def digits(*, weights: Weights = None, num_classes: int = 10, seed: int = 0) -> Digits:
    """The digits network; the arguments are those of :func:`minidnn.models.get_model`.

    ``weights="DEFAULT"`` are those at ``WEIGHTS``, which need no download.
    """
    network = Digits(num_classes=num_classes)
    return prepare(network, "digits", WEIGHTS if weights == "DEFAULT" else weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("digits")
