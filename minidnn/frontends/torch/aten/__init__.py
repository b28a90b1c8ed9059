"""ATen operations that are taken: one file per family, each registering its converters."""

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
