"""Converters of ATen operations, one file per family, registered by :func:`.call.takes`."""

from minidnn.frontends.torch.aten import (
    activations,
    arithmetic,
    attention,
    comparison,
    contraction,
    movement,
    normalization,
    pooling,
    reduction,
    resizing,
)

__all__ = [
    "activations",
    "arithmetic",
    "attention",
    "comparison",
    "contraction",
    "movement",
    "normalization",
    "pooling",
    "reduction",
    "resizing",
]
