"""Inception v3: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015
(arXiv 1512.00567).  The auxiliary classifier serves training alone and is left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn import layers as L
from minidnn.graph import operators as ops
from minidnn.graph.trace import apply, current_trace
from minidnn.graph.types import TensorType

from ._common import Weights, draw, normal, prepare

Size = int | tuple[int, int]


class BasicConv2d(L.Layer):
    """Convolution, batch normalization, ReLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: Size, stride: int = 1, padding: Size = 0
    ) -> None:
        self.conv = L.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = L.BatchNorm2d(outputs, eps=0.001)
        self.relu = L.ReLU()

    def forward(self, x: Any) -> Any:
        return self.relu(self.bn(self.conv(x)))


class Mixed(L.Layer):
    """Branches over one input, joined along channels: what all Inception blocks are.

    ``self.pool`` and ``self.concat`` are shared by the blocks below; only the convolutions have
    parameters, named as torchvision names them.
    """

    def __init__(self, pool: L.Layer) -> None:
        self.pool = pool
        self.concat = L.Concat()

    def chain(self, names: str, x: Any) -> Any:
        """``x`` through the layers of these names, one after another."""
        for name in names.split():
            x = getattr(self, name)(x)
        return x


class InceptionA(Mixed):
    """Takes (N, inputs, H, W) and gives (N, 224 + pool_features, H, W)."""

    def __init__(self, inputs: int, pool_features: int) -> None:
        super().__init__(L.AvgPool2d(3, stride=1, padding=1))
        self.branch1x1 = BasicConv2d(inputs, 64, 1)
        self.branch5x5_1 = BasicConv2d(inputs, 48, 1)
        self.branch5x5_2 = BasicConv2d(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = BasicConv2d(inputs, 64, 1)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(96, 96, 3, padding=1)
        self.branch_pool = BasicConv2d(inputs, pool_features, 1)

    def forward(self, x: Any) -> Any:
        return self.concat(
            self.branch1x1(x),
            self.chain("branch5x5_1 branch5x5_2", x),
            self.chain("branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3", x),
            self.chain("pool branch_pool", x),
        )


class InceptionB(Mixed):
    """Halves the planes: takes (N, inputs, H, W) and gives (N, 480 + inputs, H/2, W/2)."""

    def __init__(self, inputs: int) -> None:
        super().__init__(L.MaxPool2d(3, stride=2))
        self.branch3x3 = BasicConv2d(inputs, 384, 3, stride=2)
        self.branch3x3dbl_1 = BasicConv2d(inputs, 64, 1)
        self.branch3x3dbl_2 = BasicConv2d(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = BasicConv2d(96, 96, 3, stride=2)

    def forward(self, x: Any) -> Any:
        return self.concat(
            self.branch3x3(x),
            self.chain("branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3", x),
            self.pool(x),
        )


class InceptionC(Mixed):
    """7x7 windows as 1x7 and 7x1: takes (N, inputs, H, W) and gives (N, 768, H, W)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(L.AvgPool2d(3, stride=1, padding=1))
        row: dict[str, Any] = {"kernel": (1, 7), "padding": (0, 3)}
        column: dict[str, Any] = {"kernel": (7, 1), "padding": (3, 0)}
        self.branch1x1 = BasicConv2d(inputs, 192, 1)
        self.branch7x7_1 = BasicConv2d(inputs, width, 1)
        self.branch7x7_2 = BasicConv2d(width, width, **row)
        self.branch7x7_3 = BasicConv2d(width, 192, **column)
        self.branch7x7dbl_1 = BasicConv2d(inputs, width, 1)
        self.branch7x7dbl_2 = BasicConv2d(width, width, **column)
        self.branch7x7dbl_3 = BasicConv2d(width, width, **row)
        self.branch7x7dbl_4 = BasicConv2d(width, width, **column)
        self.branch7x7dbl_5 = BasicConv2d(width, 192, **row)
        self.branch_pool = BasicConv2d(inputs, 192, 1)

    def forward(self, x: Any) -> Any:
        return self.concat(
            self.branch1x1(x),
            self.chain("branch7x7_1 branch7x7_2 branch7x7_3", x),
            self.chain(" ".join(f"branch7x7dbl_{i}" for i in range(1, 6)), x),
            self.chain("pool branch_pool", x),
        )


class InceptionD(Mixed):
    """Halves the planes: takes (N, inputs, H, W) and gives (N, 512 + inputs, H/2, W/2)."""

    def __init__(self, inputs: int) -> None:
        super().__init__(L.MaxPool2d(3, stride=2))
        self.branch3x3_1 = BasicConv2d(inputs, 192, 1)
        self.branch3x3_2 = BasicConv2d(192, 320, 3, stride=2)
        self.branch7x7x3_1 = BasicConv2d(inputs, 192, 1)
        self.branch7x7x3_2 = BasicConv2d(192, 192, (1, 7), padding=(0, 3))
        self.branch7x7x3_3 = BasicConv2d(192, 192, (7, 1), padding=(3, 0))
        self.branch7x7x3_4 = BasicConv2d(192, 192, 3, stride=2)

    def forward(self, x: Any) -> Any:
        return self.concat(
            self.chain("branch3x3_1 branch3x3_2", x),
            self.chain(" ".join(f"branch7x7x3_{i}" for i in range(1, 5)), x),
            self.pool(x),
        )


class InceptionE(Mixed):
    """Branches that split again: takes (N, inputs, H, W) and gives (N, 2048, H, W)."""

    def __init__(self, inputs: int) -> None:
        super().__init__(L.AvgPool2d(3, stride=1, padding=1))
        self.branch1x1 = BasicConv2d(inputs, 320, 1)
        self.branch3x3_1 = BasicConv2d(inputs, 384, 1)
        self.branch3x3_2a = BasicConv2d(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3_2b = BasicConv2d(384, 384, (3, 1), padding=(1, 0))
        self.branch3x3dbl_1 = BasicConv2d(inputs, 448, 1)
        self.branch3x3dbl_2 = BasicConv2d(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = BasicConv2d(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3dbl_3b = BasicConv2d(384, 384, (3, 1), padding=(1, 0))
        self.branch_pool = BasicConv2d(inputs, 192, 1)

    def forward(self, x: Any) -> Any:
        single = self.branch3x3_1(x)
        double = self.chain("branch3x3dbl_1 branch3x3dbl_2", x)
        return self.concat(
            self.branch1x1(x),
            self.branch3x3_2a(single),
            self.branch3x3_2b(single),
            self.branch3x3dbl_3a(double),
            self.branch3x3dbl_3b(double),
            self.chain("pool branch_pool", x),
        )


class TransformInput(L.Layer):
    """From torchvision's normalization of images to the one of the network's first training.

    ``(x * std + mean - 0.5) / 0.5`` per colour, with the mean and standard deviation by which
    torchvision normalizes.  The numbers are no parameters: no state dict has them.
    """

    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    def __init__(self) -> None:
        self._scale = (np.array(self.std) / 0.5).astype(np.float32)
        self._shift = ((np.array(self.mean) - 0.5) / 0.5).astype(np.float32)

    def forward(self, x: Any) -> Any:
        scale = self._constant("scale", self._scale)
        shift = self._constant("shift", self._shift)
        return apply(ops.ScaleShift(), x, scale, shift)

    def _constant(self, name: str, array: np.ndarray) -> Any:
        trace = current_trace()
        path = f"{trace.path}.{name}".lstrip(".")
        return trace.constant((self, name), path, TensorType((3,), "float32"), lambda: array)


class Inception3(L.Layer):
    """Takes (N, 3, H, W) of at least 75x75 and gives (N, num_classes)."""

    input_shape = (3, 299, 299)
    ignored_prefixes = ("AuxLogits.",)

    def __init__(self, num_classes: int = 1000, transform_input: bool = False) -> None:
        self.transform = TransformInput() if transform_input else L.Identity()
        self.Conv2d_1a_3x3 = BasicConv2d(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = BasicConv2d(32, 32, 3)
        self.Conv2d_2b_3x3 = BasicConv2d(32, 64, 3, padding=1)
        self.maxpool1 = L.MaxPool2d(3, stride=2)
        self.Conv2d_3b_1x1 = BasicConv2d(64, 80, 1)
        self.Conv2d_4a_3x3 = BasicConv2d(80, 192, 3)
        self.maxpool2 = L.MaxPool2d(3, stride=2)
        self.Mixed_5b = InceptionA(192, pool_features=32)
        self.Mixed_5c = InceptionA(256, pool_features=64)
        self.Mixed_5d = InceptionA(288, pool_features=64)
        self.Mixed_6a = InceptionB(288)
        self.Mixed_6b = InceptionC(768, width=128)
        self.Mixed_6c = InceptionC(768, width=160)
        self.Mixed_6d = InceptionC(768, width=160)
        self.Mixed_6e = InceptionC(768, width=192)
        self.Mixed_7a = InceptionD(768)
        self.Mixed_7b = InceptionE(1280)
        self.Mixed_7c = InceptionE(2048)
        self.avgpool = L.AdaptiveAvgPool2d(1)
        self.dropout = L.Dropout()
        self.flatten = L.Flatten()
        self.fc = L.Linear(2048, num_classes)
        # torchvision cuts these off at -2 and 2, which is 20 standard deviations away.
        draw(self, L.Conv2d, normal(0.1))
        draw(self, L.Linear, normal(0.1))

    def forward(self, x: Any) -> Any:
        for _, layer in self.children():  # in the order of __init__
            x = layer(x)
        return x


def inception_v3(
    *,
    weights: Weights = None,
    num_classes: int = 1000,
    seed: int = 0,
    transform_input: bool | None = None,
) -> Inception3:
    """Inception v3; the arguments are those of :func:`minidnn.models.get_model`, and:

    Args:
        transform_input: whether the network itself turns images normalized as for the other
            networks into what torchvision's weights for it were trained on.  None: when
            ``weights`` are given, as in torchvision.  Loading weights later, with
            ``load_state_dict``, changes nothing about it.
    """
    if transform_input is None:
        transform_input = weights is not None
    return prepare(Inception3(num_classes, transform_input), "inception_v3", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("inception_v3")
