"""ResNets whose bottlenecks are wider: ResNeXt, in groups (Xie et al., "Aggregated Residual
Transformations for Deep Neural Networks", 2016, arXiv 1611.05431), and wide ResNet, without
(Zagoruyko and Komodakis, "Wide Residual Networks", 2016, arXiv 1605.07146)."""

from __future__ import annotations

from ._common import Weights, prepare
from .resnet import Bottleneck, ResNet


class Bottleneck32x4d(Bottleneck):
    """32 groups of 4 channels, of more in later stages."""

    groups, group_width = 32, 4


class Bottleneck32x8d(Bottleneck):
    """32 groups of 8 channels, of more in later stages."""

    groups, group_width = 32, 8


class WideBottleneck(Bottleneck):
    """Twice the channels inside."""

    group_width = 128


def resnext50_32x4d(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> ResNet:
    """ResNeXt with 50 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    network = ResNet(Bottleneck32x4d, (3, 4, 6, 3), num_classes)
    return prepare(network, "resnext50_32x4d", weights, seed)


def resnext101_32x8d(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> ResNet:
    """ResNeXt with 101 layers; the arguments are those of :func:`minidnn.models.get_model`."""
    network = ResNet(Bottleneck32x8d, (3, 4, 23, 3), num_classes)
    return prepare(network, "resnext101_32x8d", weights, seed)


def wide_resnet50_2(*, weights: Weights = None, num_classes: int = 1000, seed: int = 0) -> ResNet:
    """ResNet with 50 layers, twice as wide; the arguments are those of
    :func:`minidnn.models.get_model`.
    """
    network = ResNet(WideBottleneck, (3, 4, 6, 3), num_classes)
    return prepare(network, "wide_resnet50_2", weights, seed)


if __name__ == "__main__":
    from ._script import main

    main("resnext50_32x4d", "resnext101_32x8d", "wide_resnet50_2")
