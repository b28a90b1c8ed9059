"""ResNet: He et al., "Deep Residual Learning for Image Recognition", 2015 (arXiv 1512.03385), with
the stride of a bottleneck in its 3x3 convolution, as torchvision has it."""

from __future__ import annotations

from typing import Any, ClassVar

from minidnn import layers as L

from ._common import IMAGENET, Weights, draw, kaiming_normal, prepare


class BasicBlock(L.Layer):
    """``relu(body(x) + shortcut(x))`` with two 3x3 convolutions.

    Takes (N, inputs, H, W) and gives (N, width, H/stride, W/stride).
    """

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        self.conv1 = L.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = L.BatchNorm2d(width)
        self.relu = L.ReLU()
        self.conv2 = L.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = L.BatchNorm2d(width)
        self.downsample = _downsample(inputs, width, stride)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(L.Layer):
    """``relu(body(x) + shortcut(x))`` with a 3x3 convolution between two of 1x1.

    Takes (N, inputs, H, W) and gives (N, 4 * width, H/stride, W/stride).  The 3x3 convolution is
    in ``groups`` of as many channels as ``group_width`` says for a width of 64.
    """

    expansion: ClassVar[int] = 4
    groups: ClassVar[int] = 1
    group_width: ClassVar[int] = 64

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        outputs = width * self.expansion
        inner = width * self.group_width // 64 * self.groups
        self.conv1 = L.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = L.BatchNorm2d(inner)
        self.conv2 = L.Conv2d(inner, inner, 3, stride, 1, groups=self.groups, bias=False)
        self.bn2 = L.BatchNorm2d(inner)
        self.conv3 = L.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = L.BatchNorm2d(outputs)
        self.relu = L.ReLU()
        self.downsample = _downsample(inputs, outputs, stride)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def _downsample(inputs: int, outputs: int, stride: int) -> L.Sequential | None:
    """What the shortcut needs to fit the body; None where ``x`` itself does."""
    if stride == 1 and inputs == outputs:
        return None
    conv = L.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
    return L.Sequential(conv, L.BatchNorm2d(outputs))


class ResNet(L.Layer):
    """Takes (N, 3, H, W) and gives (N, num_classes)."""

    input_shape = IMAGENET

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: tuple[int, int, int, int],
        num_classes: int = 1000,
    ) -> None:
        self.conv1 = L.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = L.BatchNorm2d(64)
        self.relu = L.ReLU()
        self.maxpool = L.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, blocks[0], 1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, blocks[1], 2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, blocks[2], 2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, blocks[3], 2)
        self.avgpool = L.AdaptiveAvgPool2d(1)
        self.flatten = L.Flatten()
        self.fc = L.Linear(512 * block.expansion, num_classes)
        draw(self, L.Conv2d, kaiming_normal("out"))

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.flatten(self.avgpool(x)))


def _stage(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, width: int, count: int, stride: int
) -> L.Sequential:
    rest = (block(width * block.expansion, width) for _ in range(1, count))
    return L.Sequential(block(inputs, width, stride), *rest)


def resnet18(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> ResNet:
    """ResNet with 18 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(ResNet(BasicBlock, (2, 2, 2, 2), num_classes), "resnet18", weights, seed)


def resnet34(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> ResNet:
    """ResNet with 34 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(ResNet(BasicBlock, (3, 4, 6, 3), num_classes), "resnet34", weights, seed)


def resnet50(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> ResNet:
    """ResNet with 50 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(ResNet(Bottleneck, (3, 4, 6, 3), num_classes), "resnet50", weights, seed)


def resnet101(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> ResNet:
    """ResNet with 101 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(ResNet(Bottleneck, (3, 4, 23, 3), num_classes), "resnet101", weights, seed)


def resnet152(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> ResNet:
    """ResNet with 152 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    return prepare(ResNet(Bottleneck, (3, 8, 36, 3), num_classes), "resnet152", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
