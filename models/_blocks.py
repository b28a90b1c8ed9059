"""Blocks that several families of the zoo are composed of, with torchvision's parameter names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minidnn import layers as L

Activation = Callable[[], L.Layer]
Norm = Callable[[int], L.Layer]


def multiple_of(divisor: int, channels: float) -> int:
    """The nearest multiple of ``divisor``, or the next one if that were less than 90 % of
    ``channels``: how the families round the channels of narrower and wider variants."""
    nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * channels else nearest


class ConvNormActivation(L.Sequential):
    """A convolution that keeps the size, or divides it by ``stride``, its normalization, and an
    activation unless that is None.

    Takes (N, inputs, H, W) and gives (N, outputs, H/stride, W/stride).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        norm: Norm = L.BatchNorm2d,
        activation: Activation | None = L.ReLU,
    ) -> None:
        padding = (kernel - 1) // 2
        conv = L.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        super().__init__(conv, norm(outputs), *([] if activation is None else [activation()]))


class SqueezeExcitation(L.Layer):
    """Multiplies each channel by a number that two 1x1 convolutions derive from the means of all
    channels: Hu et al., "Squeeze-and-Excitation Networks", 2017 (arXiv 1709.01507).

    Takes and gives (N, channels, H, W); ``squeezed`` channels lie between the convolutions.
    """

    def __init__(
        self,
        channels: int,
        squeezed: int,
        activation: Activation = L.ReLU,
        gate: Activation = L.Sigmoid,
    ) -> None:
        self.avgpool = L.AdaptiveAvgPool2d(1)
        self.fc1 = L.Conv2d(channels, squeezed, 1)
        self.fc2 = L.Conv2d(squeezed, channels, 1)
        self.activation = activation()
        self.scale_activation = gate()

    def forward(self, x: Any) -> Any:
        y = self.activation(self.fc1(self.avgpool(x)))
        return self.scale_activation(self.fc2(y)) * x


class InvertedResidual(L.Layer):
    """``x + block(x)``, where the block is wide inside, or ``block(x)`` if it changes the shape.

    Args:
        block: takes (N, inputs, H, W) and gives (N, outputs, H/stride, W/stride).
        adds: whether the block keeps the shape.
        name: of the block in the state dict.
        drop: the probability with which training leaves the block out for an image (stochastic
            depth).
    """

    def __init__(
        self, block: L.Sequential, adds: bool, name: str = "block", drop: float = 0.0
    ) -> None:
        self._name_of_block, self.adds = name, adds
        setattr(self, name, block)
        self.stochastic_depth = L.StochasticDepth(drop, "row")

    def forward(self, x: Any) -> Any:
        y = getattr(self, self._name_of_block)(x)
        return x + self.stochastic_depth(y) if self.adds else y
