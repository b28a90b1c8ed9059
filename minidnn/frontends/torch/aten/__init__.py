"""ATen operations that are taken: one file per family, each registering its converters."""

from minidnn.frontends.torch.aten import (
    activations,
    arithmetic,
    attention,
    clamping,
    comparison,
    contraction,
    einsum,
    elementary,
    embedding,
    movement,
    normalization,
    pooling,
    reduction,
    resizing,
    statistics,
)

__all__ = [
    "activations",
    "arithmetic",
    "attention",
    "clamping",
    "comparison",
    "contraction",
    "einsum",
    "elementary",
    "embedding",
    "movement",
    "normalization",
    "pooling",
    "reduction",
    "resizing",
    "statistics",
]
