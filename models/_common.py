"""What the networks of the zoo share: how weights are drawn, and how they are loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from math import prod, sqrt
from typing import Literal, TypeVar

import numpy as np

from minidnn import layers as L

Initializer = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Weights = str | os.PathLike[str] | None
Network = TypeVar("Network", bound=L.Layer)

#: What the networks on ImageNet take: one image, as (channels, rows, columns).
IMAGENET = (3, 224, 224)


def zeros(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape, np.float32)


def normal(std: float) -> Initializer:
    return partial(_normal, std)


def _normal(std: float, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.standard_normal(shape, np.float32) * np.float32(std)


def kaiming_normal(fan: Literal["in", "out"]) -> Initializer:
    """Keeps the variance over a convolution and the ReLU that follows (He et al., 2015)."""
    return partial(_kaiming_normal, fan)


def _kaiming_normal(fan: str, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    count = prod(shape[1:]) if fan == "in" else shape[0] * prod(shape[2:])
    return _normal(sqrt(2 / count), random, shape)


def kaiming_uniform(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """As :func:`kaiming_normal` over the fan in, with an even distribution."""
    bound = np.float32(sqrt(6 / prod(shape[1:])))
    return (random.random(shape, np.float32) * 2 - 1) * bound


def draw(
    network: L.Layer,
    kind: type[L.Conv2d] | type[L.Linear],
    weight: Initializer | None = None,
    bias: Initializer | None = None,
) -> None:
    """Sets how the parameters of all layers of a kind are drawn, once they are needed.

    None leaves what the layer has by itself.
    """
    for _, layer in network.named_layers():
        if isinstance(layer, kind):
            if weight is not None:
                layer.weight.initializer = weight
            if bias is not None and layer.bias is not None:
                layer.bias.initializer = bias


def prepare(network: Network, name: str, weights: Weights, seed: int) -> Network:
    """Gives a network its weights: drawn from a seed when they are needed, or loaded.

    Args:
        network: freshly made.
        name: torchvision's name of it.
        weights: None; a path; or a name of torchvision's ImageNet weights, of which
            ``"DEFAULT"`` and ``"IMAGENET1K_V1"`` are those of this network.
        seed: of the weights, if none are loaded.

    Raises:
        WeightsError: no such weights, or they do not fit the network.
        DownloadError: they could not be fetched.
    """
    network.initialize(seed)
    if weights is not None:
        from minidnn.weights import load_weights

        versioned = isinstance(weights, str) and weights.startswith(("DEFAULT", "IMAGENET1K_"))
        network.load_state_dict(load_weights(f"{name}.{weights}" if versioned else weights))
    return network
