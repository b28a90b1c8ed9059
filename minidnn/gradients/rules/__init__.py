"""The gradient rules, one file for each family of operators.  Importing them fills the table."""

from minidnn.gradients.rules import (
    contraction,
    elementwise,
    movement,
    normalization,
    pooling,
    reduction,
)

__all__ = [
    "contraction",
    "elementwise",
    "movement",
    "normalization",
    "pooling",
    "reduction",
]
